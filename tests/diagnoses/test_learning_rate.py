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


def test_a_jump_of_the_rate_right_before_is_the_root(story, course):
    """The rate jumps, a few steps later the loss fails: the jump is the root, the failure its consequence."""
    report = story(course(lr=from_(195, 1e-2), loss=grow(197, 5)))
    assert report.diagnosis.name == "learning-rate-too-high"
    assert (report.findings[0].name, report.findings[0].step) == ("lr-jump", 195)
    assert {f.because_of for f in report.findings if f.severity == "error"} == {report.findings[0].id}
