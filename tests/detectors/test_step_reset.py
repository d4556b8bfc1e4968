"""Steps that go back."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.step_reset import StepReset
from tests.detectors.cases import N, fires, quiet

EVERY = np.r_[0:200, 150:400]


@fires(StepReset, step=150)
def a_resume_fifty_steps_back(base):
    return {"train/loss": (EVERY, np.exp(-EVERY / 100) + 1)}


@quiet(StepReset)
def one_row_out_of_order(base):
    """A row that was written late does not start the run again."""
    steps = np.arange(N)
    steps[[200, 201]] = steps[[201, 200]]
    return {"train/loss": (steps, np.exp(-steps / 100) + 1)}
