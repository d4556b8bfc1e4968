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
        """Rise over the best as a share, and in noises; least number of points."""

        rise: float = 0.25
        z: float = 4.0
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
        best = int(np.argmin(smooth[: n - max(2, n // 20)]))
        end = float(np.median(x[-max(3, n // 20) :]))
        rise = end - float(smooth[best])
        spread = max(sigma((x - smooth)[max(0, best - n // 3) : best + 1]), 1e-6)
        need = max(np.log(1 + self.options.rise), self.options.z * spread) * (3 if contest else 1)
        if not rise > need:
            return None
        after = x[best:]
        jump = float((x[min(best + 3, n - 1) :] - x[best : n - 3]).max()) if n - 3 > best else 0.0
        if jump > 0.5 * max(rise, float(np.quantile(after, 0.98) - smooth[best])) and jump > 6 * spread:
            return None
        foot = float(smooth[best]) + max(2 * spread, 0.1 * rise)
        at = min(best + int(np.flatnonzero(smooth[best:] <= foot)[-1]) + 1, n - 1)
        return self.found(
            series,
            at,
            f"{series.tag} turns at step {series.step[at]}: from {number(np.exp(smooth[best]))} it climbs to {number(np.exp(end))} and stays there",
            end=n - 1,
            evidence={"best": np.exp(smooth[best]), "best_step": series.step[best], "end": np.exp(end), "noise": spread},
        )
