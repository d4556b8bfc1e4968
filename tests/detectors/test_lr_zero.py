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


@quiet(LrZero, source="text")
def a_last_visible_digit_of_a_staircase(base):
    """A tenth of 0.0001 is printed as 0.0000, as is the warm-up before it."""
    rate = np.full(N, 1e-4)
    rate[:5], rate[N // 2 :] = 0, 0
    return base | {"lr": rate}


@fires(LrZero, step=200, source="text")
def a_rate_with_digits_that_becomes_zero(base):
    """A tenth of 0.00025 is 0.00003 in as many decimals."""
    return base | {"lr": np.where(np.arange(N) < N // 2, 2.5e-4, 0)}


@quiet(LrZero, source="text")
def an_exponential_decay_below_what_is_printed(base):
    return base | {"lr": np.round(0.01 * 0.95 ** np.arange(N), 4)}


@fires(LrZero, source="text")
def a_linear_decay_that_ends_too_early(base):
    """A straight line ends at zero, however few decimals are printed."""
    return base | {"lr": np.round(np.maximum(0, 0.01 * (1 - np.arange(N) / (N // 2))), 4)}


@quiet(LrZero, source="text")
def a_rate_of_one_digit_that_comes_and_goes(base):
    """Printed as 0.0000 and 0.0001 in turn, it is about half of that."""
    rate = np.full(N, 1e-4)
    rate[:4], rate[40], rate[42:] = 0, 0, 0
    return base | {"lr": rate}
