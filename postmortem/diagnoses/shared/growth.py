"""Growth of a loss or gradient norm by orders of magnitude up to a non-finite value: the run diverged before it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, quantile
from postmortem.diagnoses.shared.last_good import watched

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_END = 3
_LEVEL = 25
_SHOWN = 6
_FAR, _STEADY = 100.0, 10.0
"""Rows before a non-finite value that show where the growth ended; rows before the growth that show the level; rows
quoted; the growth that counts in any form; the one that counts if each of the last three rows is above the one before.
"""


@dataclass(frozen=True, slots=True)
class LoggedGrowth:
    """The rows of one series from the last one near its level to the last finite one before a non-finite value."""

    series: Series

    @property
    def sudden(self) -> bool:
        """Whether a single row is above the level: a jump, which one batch may have caused."""
        return len(self.series) < 3

    @property
    def values(self) -> str:
        """The logged values of the growth, the last ones of many."""
        few = self.series.take(slice(-_SHOWN, None))
        shown = ", ".join(number(float(v)) for v in few.value)
        return f"{few.tag} in the rows of steps {few.step[0]} to {few.step[-1]}: {shown}"

    def __str__(self) -> str:
        """The growth in words, with values that are logged at the steps named."""
        tag, step, value = self.series.tag, self.series.step, self.series.value
        first = max(1, len(value) - _END)
        last = first + int(np.argmax(np.abs(value[first:])))
        verb = "jumped" if self.sudden else "grew"
        went = f"from {number(float(value[0]))} at step {step[0]} to {number(float(value[last]))} at step {step[last]}"
        return f"{tag} {verb} {went}"


def growths(view: View, root: Finding | None) -> list[LoggedGrowth]:
    """The growth of loss and gradient norm up to the non-finite value of `root`; empty if neither grew.

    A value that is logged at the step of `root` itself counts: the loss of a step is taken before its gradient.
    """
    if root is None or root.step is None:
        return []
    found = (_growth(s, root.step, root.evidence.get("last_finite_step")) for s in watched(view))
    return [g for g in found if g is not None]


def _growth(series: Series, until: int, last_finite: int | None) -> LoggedGrowth | None:
    known = series.take(series.step <= until).finite
    size = np.abs(known.value)
    recent = size[-2 * _LEVEL :]
    if len(size) < 2 or known.step[-1] < (last_finite or 0):
        return None
    # a loss that crosses zero comes near it by chance
    low = float(recent.min() if (known.value[-len(recent) :] > 0).all() else quantile(recent, 0.25))
    start = len(size) - len(recent) + int(np.flatnonzero(recent <= 2 * low)[-1])
    level = max(float(size[start]), median(size[max(0, start - _LEVEL) : start + 1]))
    end = size[start + 1 :][-_END:]
    steady = len(end) == _END and all(a < b for a, b in pairwise(size[-_END - 1 :]))
    if not len(end) or not level or float(end.max()) < (_STEADY if steady else _FAR) * level:
        return None
    return LoggedGrowth(known.take(np.arange(start, len(size))))
