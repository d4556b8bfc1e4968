from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.roles import plain_name
from postmortem.core.stats import centred_median, column_medians, median, step_change
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.timing import NOTHING, first_slow, per_second

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_TIME = r"(?:time|duration|s|secs?|seconds?|ms|msec|millis\w*)(?: ?\(.*\))?$"
_OWN_WORK = later(
    rf"(?:^|[ /])(?:comput(?:e|ing|ation)|forward|backward|fwd|bwd|kernels?|busy|own|local)(?:[ /]+\w+)*[ /]+{_TIME}"
)
"""Times of what a rank does by itself."""
_WAITING = later(
    r"(?:^|[ /])(?:all ?reduce|all ?gather|reduce ?scatter|barrier|sync\w*|collectives?|comms?|communication|nccl"
    r"|peers?)"
    rf"(?:[ /]+\w+)*[ /]+(?:wait\w*|idle|stall\w*)(?:[ /]+{_TIME}|$)|(?:^|[ /])barrier[ /]+{_TIME}"
)
"""Times for which a rank waits for the others."""


@detector
class StragglerRank(BaseDetector):
    """One rank is slower than the others, and all others wait for it.

    What it looks for: a rank whose time per step, or for data loading, is well above that of the other ranks during
    most of the run, or from some step on.

    Why it matters: in synchronous training the slowest rank determines the speed of all.

    How: the median of the rank divided by the median over all ranks is above `ratio`, and the rank is slower than the
    median rank in at least `share` of the common steps (a sign test). At least three ranks are needed. A time of the
    rank's own work (``compute_s``, ``forward_ms``) is judged before the time of the whole step, which is the same for
    all ranks that wait for each other; of waiting times (``allreduce_wait_s``), the rank that waits least is the late
    one, if the others wait for at least a fraction `waiting` of a step. A rank that becomes slower (the best split of
    its time relative to the others, by the same measures) is reported from that step on; two ranks are enough for that.
    Differences below 5 ms are ignored.

    Typical causes: a throttled GPU, a node with other jobs, uneven shards, a rank that also writes logs and
    checkpoints.

    What to try: check that node; swap ranks between nodes to see whether the slowness stays with the node.

    Known false positives: rank 0, if it alone runs the evaluation within the step time.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Slower by this factor, in this fraction of the steps, with at least this many points per rank; fraction of a
        step that the others wait."""

        ratio: float = 1.25
        share: float = 0.8
        points: int = 10
        waiting: float = 0.2

    code = "SYS004"
    name = "straggler-rank"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        own = [s for s in view.series if s.role in (None, "step_time") and _OWN_WORK.search(plain_name(s.tag))]
        waits = [s for s in view.series if s.role in (None, "step_time") and _WAITING.search(plain_name(s.tag))]
        work, waited = self._by_tag(own), self._by_tag(waits)
        timed = [ranks for role in ("step_time", "data_time") for ranks in self._by_tag(view.of(role))]
        rates = self._by_tag(view.of("throughput"))
        if not (work or waited or timed or rates):
            raise NotChecked("no times of several ranks")
        found = [f for ranks in work for f in self._slowest(ranks)] or [f for w in waited for f in self._awaited(w)]
        if found:
            yield found[0]  # the times of the whole step hold the same delay
            return
        for ranks in timed:
            if ranks[0].tag not in {s.tag for s in (*own, *waits)}:
                yield from self._slowest(ranks)
        for ranks in rates:
            yield from self._slowest(ranks, faster_is_larger=True)

    def _by_tag(self, found: list[Series]) -> list[list[Series]]:
        """The series of each tag that two ranks or more have, with enough finite points."""
        by_tag: dict[str, list[Series]] = {}
        for series in found:
            if series.rank >= 0 and len(series.finite) >= self.options.points:
                by_tag.setdefault(series.tag, []).append(series.finite)
        return [ranks for ranks in by_tag.values() if len(ranks) >= 2]

    def _awaited(self, ranks: list[Series]) -> Iterator[Finding]:
        """The rank for which all others wait, by the times that they wait: it comes last and waits least."""
        steps, waits = _common(ranks)
        seconds = [s for s in map(_seconds_per_step, ranks) if s is not None]
        if len(steps) < self.options.points or len(ranks) < 3 or not seconds:
            return
        last = int(np.argmin([median(row) for row in waits]))
        others = np.delete(waits, last, axis=0)
        share = float((waits[last] < 0.5 * others.min(axis=0)).mean())
        lost = (median(others.min(axis=0)) - median(waits[last])) / per_second(ranks[last])
        if share < self.options.share or lost < max(NOTHING, self.options.waiting * median(np.array(seconds))):
            return
        series = ranks[last]
        yield self.found(
            series,
            int(np.searchsorted(series.step, steps[0])),
            f"the other {len(ranks) - 1} ranks wait for rank {series.rank}, for {number(lost, 2)} s of every step or "
            f"more, by {series.tag}",
            evidence={"seconds": lost, "share_of_steps": share, "ranks": len(ranks)},
        )

    def _slowest(self, ranks: list[Series], *, faster_is_larger: bool = False) -> Iterator[Finding]:
        steps, cost = _common(ranks)
        if len(steps) < self.options.points:
            return
        if faster_is_larger:
            cost = 1 / np.maximum(np.abs(cost), 1e-300)
        middle = column_medians(cost)
        levels = np.array([median(row) for row in cost])
        worst = int(np.argmax(levels))
        ratio = levels[worst] / median(np.delete(levels, worst)) if median(np.delete(levels, worst)) > 0 else 1.0
        slower = float((cost[worst] > 1.1 * middle).mean())
        if len(ranks) == 2 or ratio < self.options.ratio or slower < self.options.share:
            yield from self._became_slow(ranks, steps, cost, timed=not faster_is_larger)
        elif faster_is_larger or levels[worst] - median(np.delete(levels, worst)) >= self._floor(ranks[worst]):
            at = steps[np.argmax(cost[worst] > 1.1 * middle)]
            yield self._slow(ranks, worst, at, "is", float(ratio), slower)

    def _became_slow(
        self, ranks: list[Series], steps: NDArray[np.int64], cost: NDArray[np.float64], *, timed: bool
    ) -> Iterator[Finding]:
        """The rank whose time rose against that of the others at some step and stayed so, while theirs did not."""
        for k, series in enumerate(ranks):
            others = column_medians(cost, without=k)
            relative = np.log(np.maximum(cost[k], 1e-300) / np.maximum(others, 1e-300))
            at, _ = step_change(centred_median(relative, 5), margin=self.options.points)
            if not at:
                continue
            at = first_slow(cost[k], at)
            before, after = median(cost[k, :at]), median(cost[k, at:])
            rose = float(np.exp(median(relative[at:]) - median(relative[:at])))
            slower = float((cost[k, at:] > 1.1 * others[at:]).mean())
            floor = self._floor(series) if timed else 0.0
            if rose < self.options.ratio or after < self.options.ratio * before or after - before < floor:
                continue
            if slower < self.options.share:
                continue
            yield self._slow(ranks, k, steps[at], "becomes", rose, slower, f", from step {steps[at]} on")
            return

    def _slow(
        self, ranks: list[Series], k: int, step: np.int64, verb: str, ratio: float, share: float, since: str = ""
    ) -> Finding:
        """The finding that the `k`-th of `ranks` is or becomes slow at `step`, by `ratio` in a `share` of the steps."""
        series = ranks[k]
        return self.found(
            series,
            int(np.searchsorted(series.step, step)),
            f"rank {series.rank} {verb} {number(ratio)} times as slow "
            f"as the other {len(ranks) - 1} in {series.tag}{since}",
            evidence={"ratio": ratio, "share_of_steps": share, "ranks": len(ranks)},
        )

    @staticmethod
    def _floor(series: Series) -> float:
        """The difference that matters, in the unit of the series."""
        return NOTHING * per_second(series)


def _common(ranks: list[Series]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The steps (n,) that all ranks logged, and their values there, one row per rank."""
    steps = ranks[0].step
    steps = steps[np.diff(steps, prepend=steps[0] - 1) > 0]  # series are in the order of steps
    for other in ranks[1:]:
        nearest = np.minimum(np.searchsorted(other.step, steps), len(other) - 1)
        steps = steps[other.step[nearest] == steps]
    values = np.empty((len(ranks), len(steps)))
    for row, series in zip(values, ranks, strict=True):
        row[:] = series.value[np.searchsorted(series.step, steps)]
    return steps, values


def _seconds_per_step(series: Series) -> float | None:
    """The usual time between two steps, by the times of the rows; None if they have none."""
    timed = series.take(np.isfinite(series.wall_time))
    steps, seconds = np.diff(timed.step), np.diff(timed.wall_time)
    return median(seconds[steps > 0] / steps[steps > 0]) if (steps > 0).sum() >= 3 else None
