from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, quantile, sigma, step_change
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.regimes import change_at
from postmortem.detectors.shared.timing import longer_episodes, negligible, timings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View
    from postmortem.detectors.shared.timing import Timing


@detector
class ThroughputDrop(BaseDetector):
    """Steps become slower from some step on, until the end.

    What it looks for: a lasting increase of the time per step (or decrease of throughput).

    Why it matters: the run costs more than planned, often because of one faulty machine.

    How: the best split of log(time per step) into two levels (Scott and Knott, 1974). The later level is slower by at
    least `ratio` times and `z` noise units and by 5 ms per step, and lasts until the end. If neither step times nor
    throughput are logged, the wall times of the rows are used. With several ranks, more than half have to be slower: a
    single slow rank is reported as straggler-rank.

    Typical causes: a throttled or shared GPU, a slow disk or network, a growing data structure, longer samples, other
    jobs on the node, debugging code left enabled.

    What to try: compare the nodes, check GPU clocks and temperature, profile a few steps before and after.

    Severity: info if a logged schedule (a resolution, a sequence length, a batch size) changes at that step, if a log
    message announces a new phase there, or if only row times are known and they follow the reward or the episode length
    from row to row.

    Known false positives: a change of batch size, sequence length or evaluation frequency, or a switch to another data
    set, that is not logged.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Slower by this factor and this number of noise units; minimum number of points; fraction of the run that it
        lasts."""

        ratio: float = 1.4
        z: float = 5.0
        points: int = 20
        lasting: float = 0.08

    code = "SYS001"
    name = "throughput-drop"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        known = timings(view, self.options.points)
        if not known:
            raise NotChecked(f"no step times, throughput or times of rows with {self.options.points} points")
        for tag in dict.fromkeys(t.series.tag for t in known):
            of_tag = [t for t in known if t.series.tag == tag]
            found = [finding for timing in of_tag if (finding := self._judge(view, timing))]
            if 2 * len(found) > len(of_tag):  # one slow rank of many is a straggler
                yield min(found, key=lambda f: f.step or 0)
                return

    def _judge(self, view: View, timing: Timing) -> Finding | None:
        skip = max(3, len(timing.cost) // 50)  # start-up
        if timing.how == "times of the rows":
            skip = max(20, len(timing.cost) // 10)  # the first steps may be queued faster than they run
            if len(timing.cost) < 2 * skip:
                return None
        x = np.log(timing.cost[skip:])
        smooth = centred_median(x, 5)
        split, _ = step_change(smooth, margin=max(3, int(self.options.lasting * len(x))))
        before, after = smooth[:split], smooth[split:]
        if not split or median(after) - median(before) < max(
            np.log(self.options.ratio), self.options.z * sigma(before)
        ):
            return None
        base, shift = median(before), median(after) - median(before)
        if quantile(after, 0.25) - base < 0.5 * shift or median(x[-max(3, len(x) // 20) :]) - base < 0.5 * shift:
            return None  # comes and goes
        if negligible(timing, slice(skip + split, None), slice(skip, skip + split)):
            return None
        calm = np.flatnonzero(smooth[: split + 1] <= base + max(3 * sigma(before), 0.1 * shift))
        at = min(int(calm[-1]) + 1, len(x) - 1)
        series, i = timing.series, at + skip
        change: object = change_at(view, series, int(series.step[i]), near=5)
        if not change and timing.how == "times of the rows":
            change = longer_episodes(view, timing, float(shift))
        shown = timing.cost if timing.how == "times of the rows" else series.value
        return self.found(
            series,
            i,
            f"steps take {number(np.exp(shift))} times as long from step {series.step[i]} on (by {timing.how})"
            + (f", as {change}" if change else ""),
            severity="info" if change else None,
            end=len(series) - 1,
            evidence={
                "before": median(shown[skip : skip + split]),
                "after": median(shown[skip + split :]),
                "slower": np.exp(shift),
            },
        )
