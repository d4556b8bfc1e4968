"""What a monitor of the machine logged beside a training: how busy the GPUs were, and how much memory was in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.stats import median

if TYPE_CHECKING:
    from numpy.typing import NDArray

_IDLE = 2.0
"""Per cent: no program computes on the GPU."""
_AT_WORK = 5.0
"""Per cent: a program does."""
_HELD = 0.5
"""Share of the memory of the training that must still be in use: what other programs hold is not known."""


@dataclass(frozen=True, slots=True)
class MachineLog:
    """One row per sample: time in seconds since the epoch (ascending), GPU, use in per cent, memory in MiB; NaN where
    unknown."""

    path: str
    time: NDArray[np.float64]
    gpu: NDArray[np.int64]
    busy: NDArray[np.float64]
    memory: NDArray[np.float64]

    def idle_but_held(self, last: float) -> float | None:
        """Seconds for which the GPUs are idle at the end of this log, if the training still holds them then.

        That is if GPUs that were at work before `last`, the time of the last line of the training, do nothing any more,
        with their memory still in use. Else None, also if one of them has less than half of its memory in use. Idle
        times count, not only the clock: that of the training's log may be of another time zone.
        """
        used = [k for k in distinct(self.gpu) if self._usual(self.busy, k, self.time <= last) > _AT_WORK]
        at_work = self.time[np.isin(self.gpu, used) & (self.busy > _IDLE)]
        idle = self.time > max(last, float(at_work.max(initial=-np.inf)))
        if not used or not idle.any():
            return None
        for k in used:
            training = self._usual(self.memory, k, self.time <= last)
            if not (training > 0 and self._usual(self.memory, k, idle) >= _HELD * training):
                return None
        return float(self.time[-1] - self.time[idle][0])

    def _usual(self, values: NDArray[np.float64], gpu: int, rows: NDArray[np.bool_]) -> float:
        """The median of the known values of a GPU in these rows, NaN if there is none."""
        known = values[rows & (self.gpu == gpu)]
        known = known[np.isfinite(known)]
        return median(known) if len(known) else np.nan
