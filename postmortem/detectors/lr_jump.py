from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.detectors import NotChecked, detector
from postmortem.detectors._base import BaseDetector, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class LrJump(BaseDetector):
    """The learning rate rises in one row, once, as schedules do not.

    What it looks for: a single rise of the learning rate from one row to the next, back to near its peak or above it,
    after the warm-up.

    Why it matters: the usual cause is a resume that did not restore the scheduler; the learning rate of the start
    on trained weights undoes progress or makes the loss diverge.

    How: the ratio of neighbouring rows is above `ratio` and the new value at least `share` of the largest before. One such
    rise is a jump; two or more are a schedule with warm restarts (Loshchilov and Hutter, 2017). No noise is involved.

    Typical causes: scheduler.state_dict() not saved or not loaded, a last_epoch of -1 after resuming, a learning
    rate set by hand, a changed configuration.

    What to try: save and load the scheduler with the optimizer; compare the learning rate of the first step after a resume
    with the last one before it.

    Known false positives: a run with exactly one warm restart; a second phase that is meant to start again.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Ratio of neighbouring rows, share of the peak that is reached again, rows of warm-up that are left out at most."""

        ratio: float = 1.8
        share: float = 0.6
        warmup: int = 3

    code = "LRS001"
    name = "lr-jump"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        rates = [s for s in view.of("lr") if len(s.finite) > self.options.warmup + 1]
        if not rates:
            raise NotChecked("no learning rate found")
        reported: set[int] = set()
        for raw in rates:
            series = raw.finite
            x = series.value
            peak = np.maximum.accumulate(x)[:-1]
            rises = np.flatnonzero((x[1:] > self.options.ratio * x[:-1]) & (x[1:] >= self.options.share * peak) & (x[:-1] > 0)) + 1
            rises = rises[np.diff(rises, prepend=-9) > 1]  # the mean over a jump makes two rows of it
            rises = rises[[not self._warming_up(x, int(i)) for i in rises]] if len(rises) else rises
            if len(rises) != 1 or int(series.step[rises[0]]) in reported:
                continue
            at = int(rises[0])
            reported.add(int(series.step[at]))
            lasts = bool((x[at : at + 5] > 0.5 * x[at]).all())
            back = "back near its peak" if x[at] <= 1.2 * peak[at - 1] else "above all values before"
            back += "" if lasts else ", for a moment"
            yield self.found(
                series,
                at,
                f"{series.tag} jumps from {number(x[at - 1])} to {number(x[at])} between steps {series.step[at - 1]} and {series.step[at]}, {back}",
                severity="warning" if lasts else "info",
                evidence={"before": x[at - 1], "after": x[at], "peak_before": peak[at - 1], "step_before": series.step[at - 1]},
            )

    def _warming_up(self, x: np.ndarray[tuple[int], np.dtype[np.float64]], i: int) -> bool:
        """Whether the learning rate has done nothing but rise up to row i, by about the same amounts."""
        before = x[:i]
        return bool(len(before) < self.options.warmup or ((np.diff(before) >= 0).all() and before[-1] > before[0]))
