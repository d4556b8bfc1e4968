"""One metric of one rank over the steps that were not overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of one rank over the surviving steps.

    `step` int64[n], not decreasing; `value` float64[n]; `wall_time` float64[n], seconds since the epoch or
    NaN. Arrays are shared and read-only.
    """

    tag: str
    role: str | None
    rank: int
    source: str
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def finite(self) -> Series:
        """The same series without its non-finite points."""
        ok = np.isfinite(self.value)
        return self if ok.all() else self.take(ok)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Series:
        """The same series with these rows only."""
        return Series(
            self.tag, self.role, self.rank, self.source, self.step[rows], self.value[rows], self.wall_time[rows]
        )
