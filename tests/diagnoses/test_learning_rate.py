"""A learning rate beyond what the model could take."""

from __future__ import annotations

import re

import numpy as np

from postmortem.diagnoses.learning_rate import LearningRateTooHigh
from tests.diagnoses.cases import NAN_FROM_200, RATE_RAMP, from_, grow, quiet, tells


@tells(LearningRateTooHigh, root="divergence")
def a_rate_that_rises_until_the_loss_diverges(course):
    return course(lr=RATE_RAMP, loss=grow(200, 25))


@quiet(LearningRateTooHigh)
def a_divergence_at_a_constant_rate(course):
    return course(loss=grow(200, 25))


def test_a_rate_that_is_infinite_itself_is_certain(story, course):
    """A learning rate logged as inf at the step where the loss fails is a cause that the log proves."""
    told = story(course(lr=from_(200, np.inf), **NAN_FROM_200)).diagnosis
    assert (told.name, told.strength) == ("nonfinite-learning-rate", "certain")


def test_rate_advice_names_the_values_seen(story, course):
    """The change of the learning rate is given in numbers, under the key of the configuration."""
    diagnosis = story(course(lr=RATE_RAMP, loss=grow(200, 25)), config={"optimizer.lr": 3e-4}).diagnosis
    advice = next(line for line in diagnosis.next if line.startswith("optimizer.lr: "))
    high, low = (float(x) for x in re.findall(r"[\d.e-]+(?= →)|(?<=→ )[\d.e-]+", advice))
    assert low < high
    assert "stable at" in advice


def test_no_rate_is_called_stable_at_which_the_loss_never_fell(story):
    """In a warm-up in which the loss rises from its first row on, the rate of the row before was no better."""
    rate = np.concatenate([np.linspace(0.1, 3.0, 20), np.full(60, 3.0)])
    loss = 3.6 * np.exp(np.minimum(np.arange(80) / 3, 5.0))
    told = story({"loss": loss, "lr": rate}).diagnosis
    assert told.name == "learning-rate-too-high"
    assert "no rate before at which the loss fell" in told.summary
    assert "stable at" not in (advice := next(line for line in told.next if line.startswith("lr: ")))
    assert "no rate is known at which the loss fell" in advice
    assert "was rising from 0.1 " in told.summary  # 0.1, 0.25, 0.4: the second is twice the first, but no jump
    assert "use a longer warm-up if the failure was in the warm-up" in told.next


def test_the_stable_rate_is_one_at_which_the_loss_still_fell(story):
    """The loss falls up to a rate of 0.1 and rises slowly from there on, long before it fails."""
    step = np.arange(300)
    loss = np.interp(step, [0, 100, 200, 220, 299], [5.0, 1.0, 1.6, 60.0, 80.0]) * (1 + 0.01 * np.sin(step))
    told = story({"loss": loss, "lr": step / 1000}).diagnosis
    advice = next(line for line in told.next if line.startswith("lr: "))
    assert 0.09 <= float(re.search(r"stable at ([\d.]+),", advice)[1]) <= 0.11


def test_a_jump_of_the_rate_right_before_is_the_root(story, course):
    """The rate jumps, a few steps later the loss fails: the jump is the root, the failure its consequence."""
    report = story(course(lr=from_(195, 1e-2), loss=grow(197, 5)))
    assert report.diagnosis.name == "learning-rate-too-high"
    assert (report.findings[0].name, report.findings[0].step) == ("lr-jump", 195)
    assert {f.because_of for f in report.findings if f.severity == "error"} == {report.findings[0].id}
