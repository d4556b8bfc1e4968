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
