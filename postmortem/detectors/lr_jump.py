from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.printable import number
from postmortem.core.series import Series
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.lr_phase import no_worse
from postmortem.detectors.shared.nonfinite import overwritten_onset
from postmortem.detectors.shared.regimes import change_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.points import Points
    from postmortem.core.run import Restart
    from postmortem.core.view import View
    from postmortem.detectors.shared.regimes import Change


@detector
class LrJump(BaseDetector):
    """The learning rate jumps up once, unlike any schedule, or a restart repeats steps with another learning rate.

    What it looks for: a single rise of the learning rate from one row to the next, after the warm-up, to near or above
    its peak; steps that a restart repeated with a higher or lower learning rate.

    Why it matters: the usual cause is a resume that did not restore the scheduler. The initial learning rate, applied
    to trained weights, undoes progress or makes the loss diverge.

    How: the ratio of neighbouring rows is above `ratio`, and the new value is at least `share` of the largest value
    before. One such rise is a jump; two or more are a schedule with warm restarts (Loshchilov and Hutter, 2017). No
    statistics. A schedule gives each step one learning rate: if, after a restart, it differs by the factor `apart` from
    every value logged around the same steps before, the schedule has changed. A restart at the first step is a new
    training and is not compared. If the overwritten steps were non-finite, a lower rate after them is a remedy: `info`.

    Typical causes: scheduler.state_dict() not saved or not loaded, a last_epoch of -1 after resuming, a learning rate
    set manually, a changed configuration.

    What to try: save and load the scheduler with the optimizer; compare the learning rate of the first step after a
    resume with the last one before it.

    Severity: info if the log announces a new phase or unfrozen layers at that step and the loss is no higher after it.

    Known false positives: a run with exactly one warm restart; a second phase that restarts the schedule intentionally.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Ratio of neighbouring rows, fraction of the peak that is reached again, maximum number of warm-up rows that
        are ignored; ratio of the same step before and after a restart."""

        ratio: float = 1.8
        share: float = 0.6
        warmup: int = 3
        apart: float = 1.25

    code = "LRS001"
    name = "lr-jump"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        rates = [s for s in view.of("lr") if len(s.finite) > self.options.warmup + 1]
        if not rates:
            raise NotChecked("no learning rate found")
        reported: set[int] = set()
        failed = any(s.role in ("loss", "grad_norm") and not np.isfinite(s.value).all() for s in view.overwritten)
        for series, at, before in self._resumed(view):
            if int(series.step[at]) not in reported:
                reported.add(int(series.step[at]))
                now = f"{series.tag} is {number(series.value[at])} at step {series.step[at]} after the restart"
                yield self.found(
                    series,
                    at,
                    f"{now}, and was {number(before)} at that step before it",
                    severity="info" if failed and series.value[at] < before else None,
                    evidence={"before": before, "after": series.value[at]},
                )
        for raw in rates:
            series = raw.finite
            jump = self._only_jump(series.value)
            if jump is not None and int(series.step[jump]) not in reported:
                reported.add(int(series.step[jump]))
                yield self._jump(series, jump, self._planned(view, series, int(series.step[jump])))

    def _only_jump(self, x: NDArray[np.float64]) -> int | None:
        """The row at which the learning rate jumps; None for no jump or several, as in a cyclic schedule."""
        above = x[1:] > self.options.ratio * x[:-1]
        if not above.any():
            return None
        peak = np.maximum.accumulate(x)[:-1]
        jumps = above & (x[1:] >= self.options.share * peak) & (x[:-1] > 0)
        rises = np.flatnonzero(jumps) + 1
        rises = rises[np.diff(rises, prepend=-9) > 1]  # if means are logged, one jump spans two rows
        rises = rises[[not self._warming_up(x, int(i)) for i in rises]] if len(rises) else rises
        return int(rises[0]) if len(rises) == 1 else None

    @staticmethod
    def _planned(view: View, series: Series, step: int) -> Change | None:
        """The announced change that explains a jump at `step`, in a training that went on no worse and finite."""
        finite = all(np.isfinite(s.value).all() for s in view.series if s.role in ("loss", "grad_norm"))
        return change_at(view, series, step, costs="half") if finite and no_worse(view, step) else None

    def _jump(self, series: Series, at: int, change: Change | None) -> Finding:
        x, step = series.value, series.step
        peak = x[:at].max()
        lasts = bool((x[at : at + 5] > 0.5 * x[at]).all())
        back = "back near its peak" if x[at] <= 1.2 * peak else "above all values before"
        back += "" if lasts else ", temporarily"
        return self.found(
            series,
            at,
            f"{series.tag} jumps from {number(x[at - 1])} to {number(x[at])} "
            f"between steps {step[at - 1]} and {step[at]}, {back}" + (f", as {change}" if change else ""),
            severity="warning" if lasts and not change else "info",
            evidence={"before": x[at - 1], "after": x[at], "peak_before": peak, "step_before": step[at - 1]},
        )

    def _warming_up(self, x: NDArray[np.float64], i: int) -> bool:
        """True if the learning rate has only risen before row i, or was constant and rises on from there."""
        before = x[:i]
        if len(before) < self.options.warmup:
            return True
        moves = np.diff(x[i:])
        goes_on = bool((moves[moves != 0][:1] > 0).all()) and bool(moves.any())  # a stair of a warm-up by epochs
        return bool((np.diff(before) >= 0).all() and (before[-1] > before[0] or goes_on))

    def _resumed(self, view: View) -> Iterator[tuple[Series, int, float]]:
        """Yields (learning rate after a restart, its first row that differs, the rate at that step before)."""
        for stream in view.run.streams:
            if not stream.restarts:
                continue
            points = stream.points
            order, borders = points.by_tag_and_rank()
            for rows in np.split(order, borders):
                tag = points.tags[int(points.code[rows[0]])] if len(rows) else ""
                if view.run.roles.get(tag) != "lr":
                    continue
                rows = rows[np.isfinite(points.value[rows]) & (points.value[rows] > 0)]
                segment = stream.segment[rows]
                for k in distinct(segment)[1:]:
                    if _starts_over(stream.points, stream.restarts[k - 1]):
                        continue
                    lost = overwritten_onset(view, stream.restarts[k - 1])
                    old, new = rows[segment == k - 1], rows[segment == k]
                    series = Series(
                        tag,
                        "lr",
                        int(points.take("rank", new[0])),
                        stream.source,
                        points.take("step", new),
                        points.value[new],
                        points.take("wall_time", new),
                    )
                    step, value = points.take("step", old), points.value[old]
                    at = self._first_apart(step, value, series) if len(old) else None
                    if at is None:
                        continue
                    rate = float(value[np.searchsorted(step, series.step[at], side="right") - 1])
                    if lost is None or series.value[at] > rate:  # else lowered on purpose, as the old one led to NaN
                        yield series, at, rate

    def _first_apart(self, step: NDArray[np.int64], value: NDArray[np.float64], new: Series) -> int | None:
        """The first row of `new` that differs from the rate at its step before; None unless most repeated rows do."""
        if new.step[0] <= step[0] or (np.diff(step) < 0).any():
            return None
        again = np.flatnonzero(new.step <= step[-1])
        left = np.searchsorted(step, new.step[again], side="right") - 1
        right = np.searchsorted(step, new.step[again], side="left")  # the same row as left if the step was logged
        right = np.minimum(right, len(step) - 1)
        low, high = np.minimum(value[left], value[right]), np.maximum(value[left], value[right])
        apart = (new.value[again] > self.options.apart * high) | (new.value[again] * self.options.apart < low)
        return int(again[np.argmax(apart)]) if len(again) and 2 * np.count_nonzero(apart) > len(again) else None


def _starts_over(points: Points, restart: Restart) -> bool:
    """Whether a restart begins at the first step that its tag has in the log: another training."""
    rows = points.code == points.tags.index(restart.tag)
    return bool(restart.after <= points.take("step", np.flatnonzero(rows)).min())
