from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, step_change
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.timing import NOTHING, per_second

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class StragglerRank(BaseDetector):
    """One rank is slower than the others, and all others wait for it.

    What it looks for: a rank whose time per step, or for data loading, is well above that of the other ranks during
    most of the run, or from some step on.

    Why it matters: in synchronous training the slowest rank determines the speed of all.

    How: the median of the rank divided by the median over all ranks is above `ratio`, and the rank is slower than the
    median rank in at least `share` of the common steps (a sign test). At least three ranks are needed. A rank that
    becomes slower (the best split of its time relative to the others, by the same measures) is reported from that step
    on; for that, two ranks are enough. Differences below 5 ms are nothing.

    Typical causes: a throttled GPU, a node with other jobs, uneven shards, a rank that also writes logs and
    checkpoints.

    What to try: check that node; swap ranks between nodes to see whether the slowness stays with the node.

    Known false positives: rank 0, if it alone runs the evaluation within the step time.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Slower by this factor, in this fraction of the steps, with at least this many points per rank."""

        ratio: float = 1.25
        share: float = 0.8
        points: int = 10

    code = "SYS004"
    name = "straggler-rank"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        judged = False
        for role in ("step_time", "data_time", "throughput"):
            by_tag: dict[str, list[Series]] = {}
            for series in view.of(role):
                if series.rank >= 0 and len(series.finite) >= self.options.points:
                    by_tag.setdefault(series.tag, []).append(series.finite)
            for ranks in by_tag.values():
                if len(ranks) >= 2:
                    judged = True
                    yield from self._slowest(ranks, faster_is_larger=role == "throughput")
        if not judged:
            raise NotChecked("no times of several ranks")

    def _slowest(self, ranks: list[Series], *, faster_is_larger: bool) -> Iterator[Finding]:
        steps = ranks[0].step
        steps = steps[np.diff(steps, prepend=steps[0] - 1) > 0]  # series are in the order of steps
        for other in ranks[1:]:
            nearest = np.minimum(np.searchsorted(other.step, steps), len(other) - 1)
            steps = steps[other.step[nearest] == steps]
        if len(steps) < self.options.points:
            return
        cost = np.stack([s.value[np.searchsorted(s.step, steps)] for s in ranks])
        if faster_is_larger:
            cost = 1 / np.maximum(np.abs(cost), 1e-300)
        middle = np.median(cost, axis=0)
        levels = np.array([median(row) for row in cost])
        worst = int(np.argmax(levels))
        ratio = levels[worst] / median(np.delete(levels, worst)) if median(np.delete(levels, worst)) > 0 else 1.0
        slower = float((cost[worst] > 1.1 * middle).mean())
        if len(ranks) == 2 or ratio < self.options.ratio or slower < self.options.share:
            yield from self._became_slow(ranks, steps, cost, timed=not faster_is_larger)
        elif faster_is_larger or levels[worst] - median(np.delete(levels, worst)) >= self._floor(ranks[worst]):
            at = int(np.argmax(cost[worst] > 1.1 * middle))
            series = ranks[worst]
            yield self.found(
                series,
                int(np.searchsorted(series.step, steps[at])),
                f"rank {series.rank} is {number(float(ratio))} times as slow "
                f"as the other {len(ranks) - 1} in {series.tag}",
                evidence={"ratio": ratio, "share_of_steps": slower, "ranks": len(ranks)},
            )

    def _became_slow(
        self, ranks: list[Series], steps: NDArray[np.int64], cost: NDArray[np.float64], *, timed: bool
    ) -> Iterator[Finding]:
        """The rank whose time rose against that of the others at some step and stayed so, while theirs did not."""
        for k, series in enumerate(ranks):
            others = np.median(np.delete(cost, k, axis=0), axis=0)
            relative = np.log(np.maximum(cost[k], 1e-300) / np.maximum(others, 1e-300))
            at, _ = step_change(centred_median(relative, 5), margin=self.options.points)
            if not at:
                continue
            before, after = median(cost[k, :at]), median(cost[k, at:])
            rose = float(np.exp(median(relative[at:]) - median(relative[:at])))
            slower = float((cost[k, at:] > 1.1 * others[at:]).mean())
            floor = self._floor(series) if timed else 0.0
            if rose < self.options.ratio or after < self.options.ratio * before or after - before < floor:
                continue
            if slower < self.options.share:
                continue
            yield self.found(
                series,
                int(np.searchsorted(series.step, steps[at])),
                f"rank {series.rank} becomes {number(rose)} times as slow "
                f"as the other {len(ranks) - 1} in {series.tag}, from step {steps[at]} on",
                evidence={"ratio": rose, "share_of_steps": slower, "ranks": len(ranks)},
            )
            return

    @staticmethod
    def _floor(series: Series) -> float:
        """The difference that matters, in the unit of the series."""
        return NOTHING * per_second(series)
