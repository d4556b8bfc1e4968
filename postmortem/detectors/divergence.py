from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.stats import centred_median, sigma
from postmortem.detectors import NotChecked, detector
from postmortem.detectors._base import BaseDetector, number
from postmortem.detectors._excursions import residuals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.view import Series, View


@detector
class Divergence(BaseDetector):
    """A training loss that turns and climbs, and does not come back.

    What it looks for: a smoothed loss that ends more than 25 % and more than four noises above its best, over
    many points rather than in one jump.

    Why it matters: the weights get worse with every step; what follows the onset is lost.

    How: the median of a window around each point, against the least value it had before. Where more than half
    of the rise of the logarithm falls into three points it is a spike that did not recover, and loss-spike says so.
    The onset is the last point at the foot of the rise.

    Typical causes: a learning rate too high or ramped up, a sign error or ascent on one loss term, labels that
    went wrong, weights that grow without bound.

    What to try: resume from the last good checkpoint with a lower learning rate; look at what changed at the
    onset (schedule, data, loss weights).

    Known false positives: adversarial and reinforcement losses wander; runs with several competing losses or a
    reward are judged only where the loss multiplies.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Rise over the best as a share, and in standard deviations (2.7 are four MADs); least number of points."""

        rise: float = 0.25
        z: float = 2.7
        points: int = 15

    code = "LOS002"
    name = "divergence"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = [s for s in view.of("loss") if len(s.finite) >= self.options.points]
        if not losses:
            raise NotChecked(f"no training loss with {self.options.points} finite points")
        contest = len({s.tag for s in losses}) > 1 or bool(view.of("reward"))
        for series in losses:
            if finding := self._judge(view, series.finite, contest):
                yield finding

    def _judge(self, view: View, series: Series, contest: bool) -> Finding | None:
        res = residuals(view, series)
        if not res.log:
            return None
        x = np.log(series.value)
        n = len(x)
        smooth = centred_median(x, 2 * max(2, n // 40) + 1)
        wide = centred_median(x, 2 * max(4, n // 16) + 1)  # the least of many short windows would be a lucky one
        best = int(np.argmin(wide[: n - max(2, n // 20)]))
        level = float(wide[best])
        end = float(np.median(x[-max(3, n // 20) :]))
        rise = end - level
        spread = max(sigma((x - wide)[max(0, best - n // 3) : best + 1]), 1e-6)
        need = max(np.log(1 + self.options.rise), self.options.z * spread) * (3 if contest else 1)
        if not rise > need:
            return None
        if self._in_one_jump(x[best:], level, rise, spread):
            return None
        foot = level + max(2 * spread, 0.1 * rise)
        at = min(best + int(np.flatnonzero(smooth[best:] <= foot)[-1]) + 1, n - 1)
        return self.found(
            series,
            at,
            f"{series.tag} turns at step {series.step[at]}: from {number(np.exp(level))} it climbs to {number(np.exp(end))} and stays there",
            end=n - 1,
            evidence={"best": np.exp(level), "best_step": series.step[best], "end": np.exp(end), "noise": spread},
        )

    @staticmethod
    def _in_one_jump(after: NDArray[np.float64], level: float, rise: float, spread: float) -> bool:
        """Whether more than half of the rise falls into three points, straight from the level before."""
        if len(after) < 4:
            return False
        three = after[3:] - after[:-3]
        at = int(np.argmax(three))
        just_before = float(np.median(after[max(0, at - 2) : at + 1]))
        highest = max(rise, float(np.quantile(after, 0.98)) - level)
        return bool(three[at] > max(0.5 * highest, 6 * spread) and just_before - level < max(0.1 * rise, 3 * spread))
