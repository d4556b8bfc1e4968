"""When a series of the log that holds the losses of a rerun, by their values alone, is taken for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.replay.roll.fidelity import LoggedLoss

_DIGITS = 4
"""Significant digits of a series: values of fewer agree by chance."""
REGULAR = 3
"""Different values that must be met, where each logged step has the same number of backward passes and all are met."""
FREE = 5
"""The same in a row, where the backward passes between two logged steps may be any number."""


def can_tell(loss: LoggedLoss) -> bool:
    """Whether the values of a series can say by themselves what it is: no means over steps, and of many digits."""
    return not loss.mean and loss.digits.significant >= _DIGITS


def different(values: Iterable[float]) -> int:
    """How many different values there are; NaN and the infinities say nothing.

    >>> different([1.5, 1.5, math.nan, 2.0])
    2
    """
    return len({value for value in values if math.isfinite(value)})
