"""Seconds per step from the log: step time, throughput, or the times of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series
    from postmortem.core.view import View


@dataclass(frozen=True, slots=True)
class Timing:
    """Cost of a step at the points of `series`, in any unit, larger is slower; `how` says where it is from."""

    series: Series
    cost: NDArray[np.float64]
    how: str


def timings(view: View, points: int) -> list[Timing]:
    """All series that show how long steps took, the most direct first; wall times only if nothing else is logged."""
    found = [_timing(s, "step time") for s in view.of("step_time")] + [
        _timing(s, "throughput") for s in view.of("throughput")
    ]
    usable = [t for t in found if len(t.cost) >= points and not _counter(t.series)]
    return usable or [t for t in (_from_wall_time(view),) if t is not None and len(t.cost) >= points]


def _counter(series: Series) -> bool:
    """Whether the values only grow: time since the start, not time per step."""
    return bool((np.diff(series.value) >= 0).mean() > 0.97)


def _timing(raw: Series, how: str) -> Timing:
    series = raw.finite
    series = series.take(series.value > 0)
    return Timing(series, series.value if how == "step time" else 1 / np.maximum(series.value, 1e-300), how)


def _from_wall_time(view: View) -> Timing | None:
    """Differences of the times at which rows of the loss were written, per step."""
    loss = view.main("loss")
    if loss is None:
        return None
    series = loss.take(np.isfinite(loss.wall_time))
    if len(series) < 3:
        return None
    steps, seconds = np.diff(series.step), np.diff(series.wall_time)
    ok = (steps > 0) & (seconds > 0)
    if ok.mean() < 0.8:
        return None
    after = series.take(slice(1, None)).take(ok)
    return Timing(after, seconds[ok] / steps[ok], "times of the rows")
