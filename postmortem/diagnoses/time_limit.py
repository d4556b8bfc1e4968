from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.core.training_length import training_length
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.crash import Reason, crash_of, with_reasons
from postmortem.diagnoses.shared.last_good import watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_SILENT = 20
"""Silence before the end, in multiples of the usual time between rows and at least ten minutes, that means a hang."""


@diagnosis
class TimeLimit:
    """The job reached its time limit: reports how much of the training is left, or that it had stopped making progress
    long before.

    The remaining time is estimated from the speed of the last half of the rows logged since the last restart.
    """

    name = "time-limit"
    priority = 64

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, "slurm-time-limit")
        return with_reasons(*found, list(_reasons(view, found[1]))) if found is not None else None


def _reasons(view: View, event: Event) -> Iterator[Reason]:
    series = next((s for s in watched(view) if np.isfinite(s.wall_time).sum() > 2), None)
    pace = math.nan
    if series is not None:
        pace = _pace(view, series)
        wall = series.wall_time[np.isfinite(series.wall_time)]
        usual = median(np.diff(wall))
        silence = _ended(event) - float(wall[-1])
        # a silence of whole half hours may be the offset of a logger that writes UTC
        if silence > max(_SILENT * usual, 600) and abs((silence + 900) % 1800 - 900) > max(5 * usual, 120):
            evidence = f"nothing was logged in the last {_hours(silence)} before the limit: the run hung or became slow"
            advice = (
                "a longer time limit would not help: find out what the run waited for (py-spy dump --pid PID, the "
                "other ranks' logs) before you start it again"
            )
            yield Reason(evidence, (advice,))
    length = training_length(view)
    if length is None or length.done >= length.planned:
        return
    left = (length.planned - length.done) * pace
    if length.unit == "step" and left > 0:
        limit = f"with a time limit above {_clock(left)} (Slurm: --time), or in several jobs"
        evidence = f"it stopped {length}; the rest takes about {_hours(left)} at {number(pace, 3)} s per step"
        yield Reason(evidence, (f"resume from the newest checkpoint {limit}",))
    else:
        yield Reason(f"it stopped {length}", ("resume from the newest checkpoint",))


def _pace(view: View, series: Series) -> float:
    """Seconds per step in the last half of the rows since the last restart; NaN if they have no times."""
    started = max((r.wall_time for r in view.restarts if math.isfinite(r.wall_time)), default=-math.inf)
    timed = np.flatnonzero(series.wall_time >= started)  # never true of NaN
    if len(timed) < 3:
        return math.nan
    half, last = timed[len(timed) // 2], timed[-1]
    steps = int(series.step[last] - series.step[half])
    return float(series.wall_time[last] - series.wall_time[half]) / steps if steps > 0 else math.nan


def _ended(event: Event) -> float:
    """When the job ended by the scheduler, in seconds since the epoch in the node's time zone; NaN if unknown."""
    try:
        return datetime.fromisoformat(str(event.fields.get("at"))).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _clock(seconds: float) -> str:
    """The format of ``sbatch --time``, days-hours:minutes:seconds, rounded up to a minute."""
    minutes = math.ceil(seconds / 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    return f"{f'{days}-' if days else ''}{hours:02d}:{minutes % 60:02d}:00"
