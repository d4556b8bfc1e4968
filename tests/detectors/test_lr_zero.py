"""A learning rate of zero before the end."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.lr_zero import LrZero
from tests.detectors.cases import N, fires, put, quiet, spoiled


@fires(LrZero, step=200)
def a_rate_that_is_zero_for_half_of_the_run(base):
    return spoiled(base, "lr", put(slice(200, None), 0.0))


@quiet(LrZero)
def a_schedule_that_ends_at_zero(base):
    """A linear decay reaches zero with the last steps."""
    return base | {"lr": 1e-3 * np.maximum(0, 1 - np.arange(N) / (N - 10))}
