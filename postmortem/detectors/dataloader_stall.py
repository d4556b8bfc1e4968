from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, quantile, trailing_median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.regimes import change_at
from postmortem.detectors.shared.timing import Timing, interrupted, negligible, opens, per_second, timings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_LITTLE = 0.5
"""Seconds below which all waits of a run together are nothing: tiny steps on a busy machine."""


@detector
class DataloaderStall(BaseDetector):
    """Steps that wait for data many times longer than usual.

    What it looks for: single steps, or all steps from some point on, in which the data loading time (or the step time,
    if the loading time is not logged) is many times the usual one and not negligible compared with a step.

    Why it matters: the device waits. A single long stall suggests a problem of the storage or a dying worker; a lasting
    one, a loader that is too slow.

    How: the time is more than `factor` times the median before it and 5 ms longer, and longer than half a usual step.
    All slow steps together have to take half a second longer. A step time is not judged where the logged times of the
    forward pass, the backward pass and the update (`postmortem run`) make up most of it, nor is a wait for data in a
    step that took no longer than usual. Stalls at regular intervals (checkpoints, evaluations, epochs) are ignored, and
    so are waits of which four in five are for the first batch of an epoch or after a restart, and step times that
    include a logged evaluation or a checkpoint. The longest must be at least twice as long as nine in ten steps before
    it, so that widely varying times are not stalls.

    Typical causes: slow or shared storage, too few workers, a shuffle buffer that is refilled, a sample that takes
    seconds to decode, workers that restart every epoch (persistent_workers=False), swapping of host memory.

    What to try: use more workers and prefetching, copy the data to a local disk, measure __getitem__ per sample.

    Severity: info if it is a single row, and nine in ten rows before are not as much shorter as that takes (`single`),
    and if the stalls together take less than a hundredth of the time of all rows (`share`).

    Known false positives: irregular checkpoints or evaluations that are part of the step time and are not logged. Steps
    that become slower when a logged schedule (a resolution, a sequence length) changes, or when a log message announces
    a new phase, are not reported.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Multiple of the usual time, the same for a single stall, fraction of the run that is ignored at its start,
        minimum number of points, fraction of the time of all rows that single stalls have to take for a warning."""

        factor: float = 4.0
        single: float = 8.0
        guard: float = 0.03
        points: int = 20
        share: float = 0.01

    code = "SYS002"
    name = "dataloader-stall"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        steps = timings(view, self.options.points)
        data = [s.finite for s in view.of("data_time") if len(s.finite) >= self.options.points]
        if not steps and not data:
            raise NotChecked(f"no data loading or step times with {self.options.points} points")
        usual = median(steps[0].cost) if steps and steps[0].how == "step time" else None
        for series in data:
            slow = self._slow(series.value) & (series.value > (0.5 * usual if usual else 0))
            slow &= ~_hidden(series, steps)
            if slow[~opens(view, series)].sum() < 0.2 * slow.sum():
                continue  # the first batch of an epoch or after a resume
            if not _negligible(Timing(series, series.value, "step time"), slow) and (
                finding := self._judge(view, series, series.value, slow, lasting=True)
            ):
                yield finding
                return
        if data or not steps or steps[0].how == "times of the rows":
            return  # loading time says that it is not the loader; row times hold evaluations and checkpoints
        timing = steps[0]
        slow = self._slow(timing.cost) & ~interrupted(view, timing.series) & ~_computing(view, timing)
        slow &= ~_new_level(timing.cost, slow)
        if _negligible(timing, slow) or slow[~opens(view, timing.series)].sum() < 0.2 * slow.sum():
            return
        if finding := self._judge(view, timing.series, timing.cost, slow, lasting=False):
            yield finding

    def _slow(self, cost: NDArray[np.float64]) -> NDArray[np.bool_]:
        usual = median(cost[: max(5, len(cost) // 4)])
        base = np.clip(trailing_median(cost), 0.5 * usual, 2 * usual)  # so that a lasting stall does not become usual
        slow: NDArray[np.bool_] = cost > self.options.factor * base
        slow[: max(3, int(self.options.guard * len(cost)))] = False
        return slow

    def _judge(
        self, view: View, series: Series, cost: NDArray[np.float64], slow: NDArray[np.bool_], *, lasting: bool
    ) -> Finding | None:
        rows = np.flatnonzero(slow)
        if not len(rows):
            return None
        at = int(rows[0])
        usual = median(cost[:at])
        if len(rows) == 1 and cost[at] < self.options.single * usual:
            return None
        many = len(rows) > 0.8 * (len(cost) - at)
        if many and len(rows) > 5 and not lasting:
            return None  # slower for good: throughput-drop
        if many:
            at = _lasting_from(slow, rows)
            usual = median(cost[:at])
        if (not many and _even(rows)) or change_at(view, series, int(series.step[at])):
            return None
        longest = float(cost[rows].max())
        often = quantile(cost[:at], 0.9)
        if longest < 2 * often:
            return None  # one step in ten was nearly as long before: the times scatter
        if not usual:  # too short for the digits that are printed, as 0.000: nothing is known of the ratio
            if not many:
                return None
            worst, how = float("inf"), f"takes up to {number(longest)} where it took 0"
        else:
            worst = longest / usual
            falls = series.role == "throughput"
            how = f"falls to {number(1 / worst)} of the usual" if falls else f"is up to {number(worst)} times the usual"
        what = "from here on" if many else f"in {len(rows)} of {len(cost)} rows"
        little = (cost[rows] - usual).sum() < self.options.share * self._spent(view, series, cost)
        single = len(rows) == 1 and longest < self.options.single * often
        return self.found(
            series,
            at,
            f"{series.tag} {how} {what}, first at step {series.step[at]}",
            severity="info" if single or (little and not many) else None,
            end=int(rows[-1]),
            evidence={
                "usual": median(series.value[:at]),
                "first": series.value[at],
                "rows": len(rows),
                "worst_factor": worst,
            },
        )

    @staticmethod
    def _spent(view: View, series: Series, cost: NDArray[np.float64]) -> float:
        """The time of all rows, in the units of `cost`; that of the steps where `cost` is only the loading."""
        steps = [s.finite for s in view.of("step_time") if s.rank == series.rank and len(s.finite) == len(series)]
        whole = max((float(s.value.sum() / per_second(s)) for s in steps), default=0.0)
        return max(float(cost.sum()), whole * per_second(series))


def _negligible(timing: Timing, slow: NDArray[np.bool_]) -> bool:
    """Whether nothing is slow, the slow points by less than matters each, or all of them together."""
    at = int(np.argmax(slow))
    if not slow.any() or negligible(timing, slow, slice(0, at)):
        return True
    cost = timing.seconds()
    steps = np.diff(timing.series.step)
    between = median(steps[steps > 0]) if (steps > 0).any() else 1.0
    return cost is not None and float((cost[slow] - median(cost[:at])).sum()) * between < _LITTLE


def _hidden(series: Series, steps: list[Timing]) -> NDArray[np.bool_]:
    """True at rows whose step took no longer than usual though its loading did: the wait cost nothing.

    Only where the time of a step includes that of loading; all false where no step time is logged.
    """
    timing = next((t for t in steps if t.how == "step time" and t.series.rank == series.rank), None)
    found = np.zeros(len(series.value), bool)
    if timing is None:
        return found
    _, at, of = np.intersect1d(series.step, timing.series.step, return_indices=True)
    load, cost = series.value[at], timing.cost[of]
    if len(at) and (load <= cost).all():
        found[at] = cost - median(cost) < 0.5 * (load - median(load))
    return found


def _computing(view: View, timing: Timing) -> NDArray[np.bool_]:
    """True at rows whose own times of forward pass, backward pass and update make up most of the step: it did not wait.

    Of `postmortem run`, which takes the waiting for a loader out of them; all false where these times are not logged.
    """
    parts = [s for s in view.series if s.tag.startswith("seconds/") and s.rank == timing.series.rank]
    spent = np.zeros(len(timing.cost))
    for series in parts:
        _, at, of = np.intersect1d(timing.series.step, series.step, return_indices=True)
        spent[at] += series.value[of]
    computing: NDArray[np.bool_] = spent > 0.5 * timing.cost
    return computing


def _new_level(cost: NDArray[np.float64], slow: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True at slow rows after which nearly all rows of the next fifth take as long: throughput-drop, not a stall."""
    n, found = max(10, len(cost) // 5), np.zeros(len(cost), bool)
    for at in np.flatnonzero(slow).tolist():
        after = cost[at + 1 : at + 1 + n]
        found[at] = len(after) >= 5 and quantile(after, 0.1) > 0.5 * cost[at]
    return found


def _lasting_from(slow: NDArray[np.bool_], rows: NDArray[np.intp]) -> int:
    """The first slow row after which most rows are slow: a single wait before is not the start of a lasting one."""
    return next((int(at) for at in rows if slow[at : at + 6].mean() > 0.8), int(rows[0]))


def _even(rows: NDArray[np.intp]) -> bool:
    """True if most distances between rows are multiples of one: checkpoints or evaluations, not stalls."""
    gaps = np.diff(rows)
    if len(gaps) < 2:
        return False
    shortest = float(gaps.min())
    multiple = gaps / shortest
    whole = np.round(multiple)
    return bool(shortest > 2 and (np.abs(multiple - whole) < 0.05).mean() >= 0.8 and (whole <= 3).mean() >= 0.8)
