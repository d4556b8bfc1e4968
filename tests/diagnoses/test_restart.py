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
