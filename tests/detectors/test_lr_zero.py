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


def _stairs(*levels: float) -> np.ndarray:
    """A learning rate that is constant for as many rows at each level, as printed with five decimals."""
    return np.round(np.repeat(levels, N // len(levels)), 5)


@quiet(LrZero)
def a_staircase_that_is_printed_with_too_few_decimals(base):
    """The next level is 1e-6, of which the log shows 0.00000."""
    return base | {"lr": _stairs(1e-3, 1e-4, 1e-5, 1e-6, 1e-7)}


@fires(LrZero, step=160)
def a_staircase_that_ends_at_zero(base):
    """The next level would be 1.2e-4, which a log with five decimals shows."""
    return base | {"lr": _stairs(1.234e-2, 1.23e-3, 0, 0, 0)}
