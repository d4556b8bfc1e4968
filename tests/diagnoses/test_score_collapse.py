"""A reward that rises and is lost again."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.score_collapse import ScoreCollapse
from tests.diagnoses.cases import quiet, tells

RISES = np.concatenate([np.linspace(0.1, 0.8, 100), np.full(50, 0.8)])
FALLS = np.concatenate([RISES, np.linspace(0.8, 0.15, 25), np.full(225, 0.15)])
NOISE = 0.01 * np.random.default_rng(0).standard_normal(400)
BOLD = np.where(np.arange(400) < 150, 1.3, 0.05)


@tells(ScoreCollapse, root="score-collapse")
def a_reward_that_is_lost(course):
    return course() | {"reward": FALLS + NOISE}


@quiet(ScoreCollapse)
def a_reward_that_comes_back(course):
    return course() | {"reward": np.where(np.arange(400) > 250, 0.75, FALLS) + NOISE}


@quiet(ScoreCollapse)
def an_accuracy_that_is_lost(course):
    """What a classifier forgets has other causes than a policy."""
    return course() | {"val/accuracy": FALLS + NOISE}


def test_an_entropy_that_is_gone_is_evidence(story, course) -> None:
    """The policy hardly explores any more; the entropy is named with its values, and no cause is called certain."""
    found = story(course() | {"reward": FALLS + NOISE, "policy/entropy": BOLD * np.exp(NOISE)}).diagnosis
    assert found is not None
    assert (found.name, found.strength) == ("score-collapse", "possible")
    assert any("policy/entropy is about" in text for text in found.evidence_for)
    assert not any("entropy" in text for text in story(course() | {"reward": FALLS + NOISE}).diagnosis.evidence_for)


def test_a_critics_loss_that_jumps_with_the_fall_is_a_consequence(story, course) -> None:
    """It predicts rewards that no longer come. One that jumps long before the fall is no such consequence."""
    t = np.arange(400)
    value = np.where(t < 149, 6.0, 6.0 + 300 * np.exp(-(t - 149) / 60)) * np.exp(3 * NOISE)
    report = story({"reward": FALLS + NOISE, "value_loss": value})
    assert report.diagnosis is not None
    assert report.diagnosis.name == "score-collapse"
    assert report.findings[0].name == "score-collapse"
    below = {f.name for f in report.findings if f.because_of == report.findings[0].id}
    assert "loss-spike" in below
    early = np.where(t < 60, 6.0, 6.0 + 300 * np.exp(-(t - 60) / 60)) * np.exp(3 * NOISE)
    other = story({"reward": FALLS + NOISE, "value_loss": early}).diagnosis
    assert other is not None
    assert other.name == "diverged"
