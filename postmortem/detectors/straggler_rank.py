from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class StragglerRank(BaseDetector):
    """One rank is slower than the others, and all wait for it.

    What it looks for: a rank whose time (per step, or for loading data) is well above that of the other ranks over
    most of the run.

    Why it matters: in synchronous training the slowest rank sets the pace of all.

    How: each rank's median against the median of the ranks, above `ratio`, and slower than the middle rank in at least
    `share` of the common steps (a sign test). Three ranks or more.

    Typical causes: a throttled GPU, a node with other jobs, uneven shards, a rank that also writes logs and
    checkpoints.

    What to try: look at that node; swap ranks between nodes and see whether it moves along.

    Known false positives: rank 0 where it alone evaluates inside the step time.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Slower by this factor, in this share of the steps, with at least this many points per rank."""

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
                if len(ranks) >= 3:
                    judged = True
                    yield from self._slowest(ranks, faster_is_larger=role == "throughput")
        if not judged:
            raise NotChecked("no times of three or more ranks")

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
        if ratio >= self.options.ratio and slower >= self.options.share:
            at = int(np.argmax(cost[worst] > 1.1 * middle))
            series = ranks[worst]
            yield self.found(
                series,
                int(np.searchsorted(series.step, steps[at])),
                f"rank {series.rank} is {number(float(ratio))} times as slow "
                f"as the other {len(ranks) - 1} in {series.tag}",
                evidence={"ratio": ratio, "share_of_steps": slower, "ranks": len(ranks)},
            )
