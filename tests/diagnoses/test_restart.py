"""A restart and nothing else."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.restart import Restart
from tests.diagnoses.cases import quiet, tells

EVERY = np.r_[0:200, 150:400]


@tells(Restart, name="restarted", root="step-reset", step=150)
def a_resume_fifty_steps_back(course):
    return {
        "loss": (
            EVERY,
            (0.5 + 2 * np.exp(-EVERY / 70)) * np.exp(0.03 * np.random.default_rng(0).standard_normal(len(EVERY))),
        )
    }


def with_a_failed_attempt(new_rate):
    """Attempt 1 is NaN from step 150 to 199; attempt 2 goes on from 120 and stays finite."""
    every = np.r_[0:200, 120:500]
    loss = (0.5 + 2 * np.exp(-every / 70)) * np.exp(0.03 * np.random.default_rng(0).standard_normal(len(every)))
    loss[150:200] = np.nan
    return {"loss": (every, loss), "lr": (every, np.where(np.arange(len(every)) < 200, 0.01, new_rate))}


def test_an_overwritten_attempt_that_failed_is_told(story):
    """What the overwritten history says is evidence: where it failed, what was changed. The old rate is no advice."""
    report = story(with_a_failed_attempt(0.003))
    assert (report.verdict, report.diagnosis.name) == ("suspect", "restarted")
    assert "An earlier attempt had failed: loss was nan from step 150 on." in report.diagnosis.summary
    assert "lr was 0.01 at step 120, and is 0.003 since" in report.diagnosis.evidence_for
    assert not any("0.01" in action for action in report.diagnosis.next)
    assert {f.severity for f in report.findings if f.name == "lr-jump"} == {"info"}


def test_a_higher_rate_after_a_failed_attempt_is_a_warning(story):
    """Only a lower rate is a remedy."""
    report = story(with_a_failed_attempt(0.03))
    assert {f.severity for f in report.findings if f.name == "lr-jump"} == {"warning"}


@quiet(Restart)
def a_loss_that_is_nan_after_it(course):
    return {"loss": (EVERY, np.where(np.arange(len(EVERY)) < 400, 0.5 + 2 * np.exp(-EVERY / 70), np.nan))}


def test_restart_alone(story):
    """A restart and nothing else: overwritten points are not judged."""
    every = np.r_[0:200, 150:400]
    rng = np.random.default_rng(0)
    report = story({"loss": (every, (0.5 + 2 * np.exp(-every / 70)) * np.exp(0.03 * rng.standard_normal(len(every))))})
    assert report.diagnosis.name == "restarted"
    assert report.verdict == "suspect"
