from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.objective import is_noisy, may_grow
from postmortem.core.printable import number
from postmortem.core.stats import median, quantile
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class MetricExplosion(BaseDetector):
    """A metric other than a loss or gradient norm grows by orders of magnitude and stays there.

    What it looks for: a perplexity, or a metric whose name shows no role, that was at a steady level and then exceeds
    it by a factor of 1,000 up to the end of the log.

    Why it matters: exploding activations, weights or objectives are the same failure under any name. The other
    detectors judge only metrics whose role is known.

    How: the first part of the log ends where the magnitude first exceeds ten times all before it (8 points or more);
    nine of ten of its points are below the level. The end is the median of the last twelfth. The first part has to be
    noisy without a trend. At the end the values are at least 10,000. The onset is the first point from which on the
    magnitude stays above five times the level. One finding names the metric that explodes first; the evidence lists the
    others.

    Typical causes: those of a divergence: a learning rate that is too high, weights or activations without a bound,
    a term without a lower bound.

    What to try: check what the metric measures; set its role under `roles` in the configuration, so that all applicable
    detectors judge it.

    Known false positives: a quantity that is meant to grow by a factor of 1,000 and whose name does not show it.
    Counts, times, settings, scores, rewards, hardware and integers are not judged.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """The factor over the level at the end, and that of the onset; the smallest magnitude at the end; minimum
        number of points."""

        factor: float = 1000.0
        onset: float = 5.0
        least: float = 1e4
        points: int = 20

    code = "LOS008"
    name = "metric-explosion"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        unknown = [s.finite for s in view.series if s.role in (None, "perplexity") and len(s) >= self.options.points]
        judged = [s for s in unknown if len(s) >= self.options.points and not may_grow(s.tag)]
        if not judged:
            raise NotChecked("no metric of unknown role that is no count, setting or score")
        found = [(s, at, level) for s in judged if (at := self._onset(s, level := self._level(s))) is not None]
        if not found:
            return
        series, at, level = min(found, key=lambda f: f[0].step[f[1]])
        end = median(np.abs(series.value[-max(3, len(series) // 12) :]))
        others = sorted({s.tag for s, _, _ in found} - {series.tag})
        also = f"; so {'does' if len(others) == 1 else 'do'} {', '.join(others[:3])}" if others else ""
        also += f" and {len(others) - 3} others" if len(others) > 3 else ""
        unnamed = "" if series.role else ", a metric of unknown role,"
        yield self.found(
            series,
            at,
            f"{series.tag}{unnamed} grows from a magnitude of {number(level)} to about "
            f"{number(end)}, from step {series.step[at]} on{also}",
            end=len(series) - 1,
            evidence={"level": level, "end": end, "others": others[:20]},
        )

    def _level(self, series: Series) -> float:
        """The magnitude in the first part: nine of ten points are below it, as a climb may begin there."""
        return quantile(np.abs(series.value[: self._first_part(series)]), 0.9)

    @staticmethod
    def _first_part(series: Series) -> int:
        """How many points lie before the magnitude first exceeds ten times all that was before it, 8 at least."""
        highest = np.maximum.accumulate(np.abs(series.value))
        leaves = np.flatnonzero(highest[8:] > 10 * highest[7:-1])
        # a climb in small steps never leaves the level at once: the level is then that of the first quarter
        climb = np.flatnonzero(highest > 10 * highest[max(7, len(highest) // 4)])
        ends = [8 + int(leaves[0])] if len(leaves) else []
        ends += [int(climb[0])] if len(climb) else []
        return min(ends, default=len(series))

    def _onset(self, series: Series, level: float) -> int | None:
        """The point from which on the series stays far above its level; None if it did not explode."""
        x = np.abs(series.value)
        first = self._first_part(series)
        end = median(x[-max(3, len(x) // 12) :])
        if not (0 < level < np.inf and end >= self.options.factor * level and end >= self.options.least):
            return None
        before = series.value[:first]
        halves = median(x[: first // 2]), median(x[first // 2 : first])
        if first < 8 or halves[1] > 3 * halves[0] or not is_noisy(before) or not (before % 1).any():
            return None
        below = np.flatnonzero(x <= self.options.onset * level)
        at = int(below[-1]) + 1
        return at if at < len(x) - 2 else None
