"""One metric of one rank over the steps that were not overwritten."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.distinct import distinct, occurrences

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
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
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out of the arrays, as several detectors ask for the same."""

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
        if "finite" not in self._known:
            found = self.take(np.isfinite(self.value))
            found._known["finite"] = None  # no cycle is to keep the arrays in memory
            if found is not self:
                self._known["finite"] = found
        found = self._known["finite"]
        return self if found is None else found

    @property
    def lowest(self) -> float:
        """The lowest value; NaN if one is NaN, or there is none."""
        if "lowest" not in self._known:
            self._known["lowest"] = float(self.value.min()) if len(self.value) else math.nan
        lowest: float = self._known["lowest"]
        return lowest

    @property
    def highest(self) -> float:
        """The highest value; NaN if one is NaN, or there is none."""
        if "highest" not in self._known:
            self._known["highest"] = float(self.value.max()) if len(self.value) else math.nan
        highest: float = self._known["highest"]
        return highest

    @property
    def climb(self) -> float:
        """How many times as high as the lowest value before it a value gets; infinity where not all are above zero.

        No value is farther above the level before it, whatever is meant by its level: where this is small, nothing
        jumps.
        """
        if "climb" not in self._known:
            above_zero = self.lowest > 0 and math.isfinite(self.highest)
            self._known["climb"] = (
                float((self.value / np.minimum.accumulate(self.value)).max()) if above_zero else math.inf
            )
        climb: float = self._known["climb"]
        return climb

    @property
    def timed(self) -> bool:
        """Whether it is known of any point when it was logged."""
        if "timed" not in self._known:
            self._known["timed"] = bool(np.isfinite(self.wall_time).any())
        timed: bool = self._known["timed"]
        return timed

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
