from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, quantile, sigma
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.chance import excuses
from postmortem.detectors.shared.excursions import residuals
from postmortem.detectors.shared.losses import (
    follows_the_return,
    judged_losses,
    of_a_guessing_discriminator,
    scores_nothing,
)
from postmortem.detectors.shared.regimes import change_behind, valley

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_PLAIN = float(np.log(1.5))
"""Rise of log(loss) that is none of its noise, be the rise that follows however large."""
_SURELY = 1 - 1e-9
"""Where a bound is to hold although logarithms are rounded."""
_CLIMB = float(np.log(1.1))
"""How far above the log of its first value a loss is on its way up, if each point is above the one before."""


@detector
class Divergence(BaseDetector):
    """A training loss that starts to rise and does not recover.

    What it looks for: a smoothed loss that ends more than 25 % and more than four noise units above its best value, and
    that rose over many points rather than in one jump.

    Why it matters: the weights get worse with every step; the steps after the onset are lost.

    How: the median of a window around each point is compared with its lowest value so far. If more than half of the
    rise of log(loss) falls within three points, it is a spike without recovery, and loss-spike reports it. The onset is
    the last point before the rise. Of a short log that ends in a steady climb, only the noise before the climb counts:
    five points or more, from the lowest of all on, each above the one before. A loss that rises from the start to
    30 times its first value and never comes near that value again has no earlier level to compare with; its onset is
    the first point above twice the first value. A loss below zero diverges if its size grows by five orders of
    magnitude and still grows by half from the second third of the run to the last; its onset is the first point from
    which it is ten times the size of the first values.

    Typical causes: a learning rate that is too high or was ramped up, a sign error or gradient ascent in one loss term,
    a loss term that has no minimum, wrong labels, weights that grow without bound.

    What to try: resume from the last good checkpoint with a lower learning rate; check what changed at the onset
    (schedule, data, loss weights).

    Severity: info if a schedule that is logged (the weight of a loss term, a task, a difficulty) changes while the loss
    rises, at the same pace, or the log announces a new phase in words where it begins to rise, and the loss stays below
    three times its first level (with unfrozen layers or averaged weights, if at most half of what was learned is lost).
    No change excuses a classifier that guesses from then on. Warning if another loss of the same rows is its mirror
    image: it falls by as much as this one rises, so this may be a likelihood that is to rise.

    Known false positives: the losses of adversarial training and reinforcement learning drift; runs with several
    competing losses or a reward are reported only if the loss grows by a multiple, unless every score or reward stays
    near zero; the loss of a discriminator only if it is higher than by guessing, and that
    of a value function only if it grows by more than the square of the return.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Rise over the best value as a fraction, and in standard deviations (2.7 are four MADs); the size at which
        loss-spike reports a spike; minimum number of points; the multiple of its first value that a loss which rises
        from the start must reach, and that of its first size that a loss below zero must."""

        rise: float = 0.25
        z: float = 2.7
        spike: float = 4.0
        points: int = 15
        from_start: float = 30.0
        unbounded: float = 1e5

    code = "LOS002"
    name = "divergence"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses, contest = judged_losses(view, self.options.points)
        if not losses:
            raise NotChecked(f"no training loss with {self.options.points} finite points")
        for series in [*losses, *self._entropies(view)]:
            if finding := self._judge(view, series, contest):
                yield finding

    def _entropies(self, view: View) -> list[Series]:
        """Entropies of a policy that has no reward at all: they rise if the policy loses what structure it had."""
        if not scores_nothing(view):
            return []
        return [
            s.finite
            for s in view.series
            if "entropy" in s.tag.lower() and s.role is None and len(s) >= self.options.points
        ]

    def _from_the_start(self, view: View, series: Series, x: NDArray[np.float64], left: int) -> Finding:
        """The finding of a loss that leaves its first value, of which `x` is the logarithm, at point `left`."""
        level, end = float(x[0]), median(x[left:])
        at_end = left + _nearest(x[left:], end)
        change = change_behind(view, series, valley(x)[0], 0, left)
        return self.found(
            series,
            left,
            f"{series.tag} rises from its first value, {number(np.exp(level))}, to "
            f"{number(series.value[at_end])} at step {series.step[at_end]}, and never comes near it again"
            + (f", as {change}" if change else ""),
            severity="info" if change else None,
            end=len(x) - 1,
            evidence={"best": np.exp(level), "best_step": series.step[0], "end": np.exp(end), "noise": 0.0},
        )

    def _judge(self, view: View, series: Series, contest: bool) -> Finding | None:
        if not series.lowest > 0:
            return self._without_bound(series)
        n = len(series)
        ends_low = float(series.value[-max(3, n // 12) :].max()) < _SURELY * (1 + self.options.rise) * series.lowest
        if ends_low and (contest or series.highest < self.options.from_start * series.value[0]):
            return None
        res = residuals(view, series)
        x = np.log(series.value)
        if not contest and (left := self._left_the_start(x)):
            return self._from_the_start(view, series, x, left)
        smooth, wide, best = valley(x)
        level = float(wide[best])
        end = median(x[-max(3, n // 12) :])
        rise = end - level
        spread = max(sigma((x - wide)[max(0, best - n // 3) : best + 1]), 1e-6)
        unrest = spread
        if not _climbs_steadily(
            x
        ):  # what deviates from a wide median in a valley of few points is its shape, not noise
            unrest = max(spread, sigma((x - wide)[-max(8, n // 5) :]))  # the log of a small loss may grow noisier
        need = max(np.log(1 + self.options.rise), self.options.z * unrest) * (3 if contest else 1)
        if not rise > need or (contest and of_a_guessing_discriminator(view, series, float(np.exp(end)))):
            return None
        if contest and follows_the_return(view, series, int(series.step[best]), rise):
            return None
        at = self._onset(smooth, best, level, rise, spread)
        near = slice(max(best, at - 6), None)
        lost_at_once = at <= max(5, n // 25) and scores_nothing(view)  # loss-spike reports nothing so near the start
        jumps = not lost_at_once and self._in_one_jump(x[near], level, rise, spread)
        if jumps and res.z[near].max() > self.options.spike:
            return None
        change = change_behind(view, series, smooth, best, at) if excuses(view, int(series.step[at])) else None
        # the sentence names logged points: those nearest to the medians
        around = max(0, best - max(4, n // 16))
        low = around + _nearest(x[around : max(best, at - 1) + 1], level)
        last = max(3, n // 12)
        high = n - last + _nearest(x[-last:], end)
        rose = f"{number(series.value[high])} at step {series.step[high]}"
        if x[at] > level + 0.9 * rise:
            rose = f"{number(series.value[at])} in one row"
        mirrored = None if change else _mirrored(view, series)
        return self.found(
            series,
            at,
            f"{series.tag} rises from its level of {number(series.value[low])} at step {series.step[low]} to {rose}, "
            f"from step {series.step[at]} on, and does not recover"
            + (f", as {change}" if change else "")
            + (
                f"; {mirrored} falls by as much, so one of them may be printed with the sign turned" if mirrored else ""
            ),
            severity="info" if change else "warning" if mirrored else None,
            end=n - 1,
            evidence={"best": np.exp(level), "best_step": series.step[best], "end": np.exp(end), "noise": spread},
        )

    def _without_bound(self, series: Series) -> Finding | None:
        """A loss that runs to minus infinity: its size has grown by orders of magnitude, and still grows at the end.

        A log-likelihood is below zero too, but converges; so does the value that a policy is to raise.
        """
        x, n = series.value, len(series)
        size, third = np.abs(x), n // 3
        start = max(1.0, median(size[: max(5, n // 50)]))
        middle, last = (median(part) for part in (x[third : 2 * third], x[-third:]))
        if not (last < -self.options.unbounded * start and last < 1.5 * min(middle, 0.0)):
            return None
        at = int(np.flatnonzero(size <= 10 * start).max(initial=-1)) + 1
        end = median(x[-max(3, n // 12) :])
        high = n - max(3, n // 12) + _nearest(x[-max(3, n // 12) :], end)
        return self.found(
            series,
            at,
            f"{series.tag} falls without a lower bound: from {number(x[0])} at step {series.step[0]} to "
            f"{number(x[high])} at step {series.step[high]}, and still falls at the end",
            end=n - 1,
            evidence={"best": float(x[0]), "best_step": series.step[0], "end": end, "noise": 0.0},
        )

    def _left_the_start(self, x: NDArray[np.float64]) -> int:
        """The first point of the climb after which the loss stays above twice its first value; 0 if it does not, or
        only later.

        An untrained model's loss is about as high as a loss gets without divergence, so no noise has to be known.
        """
        left = int(np.flatnonzero(x <= x[0] + np.log(2))[-1]) + 1
        early = left <= max(3, len(x) // 10)
        if not (early and median(x[left:]) > x[0] + np.log(self.options.from_start)):
            return 0
        while left > 1 and x[0] + _CLIMB < x[left - 1] < x[left]:
            left -= 1
        return left

    @staticmethod
    def _onset(smooth: NDArray[np.float64], best: int, level: float, rise: float, spread: float) -> int:
        """Where the last climb begins: back from half of the rise to the trough, then forward out of its noise."""
        half = best + int(np.flatnonzero(smooth[best:] <= level + 0.5 * rise)[-1])
        back = smooth[best : half + 1][::-1]
        least = np.minimum.accumulate(back)
        over = np.flatnonzero(back - least > max(0.15 * rise, 2 * spread))
        trough = half - int(np.argmin(back[: int(over[0])] if len(over) else back))
        calm = np.flatnonzero(smooth[trough : half + 1] <= smooth[trough] + max(2 * spread, min(0.1 * rise, _PLAIN)))
        return min(trough + int(calm[-1]) + 1, len(smooth) - 1)

    @staticmethod
    def _in_one_jump(after: NDArray[np.float64], level: float, rise: float, spread: float) -> bool:
        """True if more than half of the rise happens within three points, straight from the level before."""
        if len(after) < 4:
            return False
        three = after[3:] - after[:-3]
        at = int(np.argmax(three))
        just_before = median(after[max(0, at - 2) : at + 1])
        highest = max(rise, quantile(after, 0.98) - level)
        return bool(three[at] > max(0.5 * highest, 6 * spread) and just_before - level < max(0.1 * rise, 3 * spread))


def _nearest(x: NDArray[np.float64], level: float) -> int:
    """The point whose value is nearest to `level`."""
    return int(np.argmin(np.abs(x - level)))


def _climbs_steadily(x: NDArray[np.float64]) -> bool:
    """Whether each of the last points, five or more, is above the one before, from the lowest of all on.

    Of points that differ by chance only, one order in 720 has that.
    """
    climb = np.diff(x[int(np.argmin(x)) :])
    return len(climb) >= 5 and bool((climb > 0).all())


def _mirrored(view: View, series: Series) -> str | None:
    """Another loss that falls by about as much as this one rises, from row to row; None if there is none."""
    for raw in view.of("loss"):
        other = raw.finite
        if other.tag == series.tag or len(other) != len(series) or (other.step != series.step).any():
            continue
        a, b = series.value, other.value
        alike = min(np.ptp(a), np.ptp(b)) > 0.75 * max(np.ptp(a), np.ptp(b))
        if alike and float(np.corrcoef(a, b)[0, 1]) < -0.98:
            return other.tag
    return None
