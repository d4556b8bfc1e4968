"""One metric of one rank over the steps that were not overwritten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct, occurrences

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Series:
    """One quantity of one rank over the surviving steps.

    `step` int64[n], not decreasing; `value` float64[n]; `wall_time` float64[n], seconds since the epoch or
    NaN. Arrays are shared and read-only.

    `epoch` int64[n] where the log places the values by an epoch, though other rows of it count steps: `step` is then
    the last one logged before each value. It shows what was before what, and is not a step of this series.
    """

    tag: str
    role: str | None
    rank: int
    source: str
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]
    epoch: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.step)

    @property
    def label(self) -> str:
        """The tag, with the rank where it is known."""
        return self.tag if self.rank < 0 else f"{self.tag} (rank {self.rank})"

    @property
    def printed_step(self) -> NDArray[np.int64]:
        """int64[n]: what the log prints beside the values, an epoch or a step."""
        return self.step if self.epoch is None else self.epoch

    @property
    def finite(self) -> Series:
        """The same series without its non-finite points; itself where it has none."""
        return self if self._finite is None else self._finite

    @cached_property
    def _finite(self) -> Series | None:
        """None where it is the series itself: no cycle is to keep the arrays in memory."""
        found = self.take(np.isfinite(self.value))
        return None if found is self else found

    @cached_property
    def lowest(self) -> float:
        """The lowest value; NaN if one is NaN, or there is none."""
        return float(self.value.min()) if len(self.value) else math.nan

    @cached_property
    def highest(self) -> float:
        """The highest value; NaN if one is NaN, or there is none."""
        return float(self.value.max()) if len(self.value) else math.nan

    @cached_property
    def climb(self) -> float:
        """How many times as high as the lowest value before it a value gets; infinity where not all are above zero.

        No value is farther above the level before it, whatever is meant by its level: where this is small, nothing
        jumps.
        """
        if not self.lowest > 0 or not math.isfinite(self.highest):
            return math.inf
        return float((self.value / np.minimum.accumulate(self.value)).max())

    @cached_property
    def timed(self) -> bool:
        """Whether it is known of any point when it was logged."""
        return bool(np.isfinite(self.wall_time).any())

    def thinned(self, most: int) -> Series:
        """At most about `most` points with the same outline: lowest, highest and first non-finite of each bucket."""
        n = len(self)
        if n <= most:
            return self
        size = -(-n // max(most // 3, 1))
        starts = np.arange(0, n, size)
        finite = np.isfinite(self.value)
        padded = np.full(len(starts) * size, np.nan)
        padded[:n] = np.where(finite, self.value, np.nan)
        table = padded.reshape(-1, size)
        lowest = np.where(np.isnan(table), np.inf, table).argmin(axis=1) + starts
        highest = np.where(np.isnan(table), -np.inf, table).argmax(axis=1) + starts
        bad = np.flatnonzero(~finite)
        first_bad = bad[occurrences(bad // size)[1]]
        rows = distinct(np.concatenate([lowest, highest, first_bad, [0, n - 1]]))
        return self.take(rows[rows < n])

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Series:
        """The same series with these rows only; itself where these are all."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        epoch = None if self.epoch is None else self.epoch[rows]
        return Series(
            self.tag, self.role, self.rank, self.source, self.step[rows], self.value[rows], self.wall_time[rows], epoch
        )
