from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, noise, row_medians
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.frozen import constant_from, digits, flat
from postmortem.detectors.shared.losses import judged_losses, totals
from postmortem.detectors.shared.lr_phase import dead_from, new_phase, still_warms_up
from postmortem.detectors.shared.regimes import change_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_LEAST_RISE = 0.1
"""Difference of log(loss) by which a level lies above the values before it."""
_NEAR, _NEAR_LEVEL = 6.0, 0.02
"""Noises, and share of the level, within which values lie at it."""
_STRAY = 0.02
"""The share of single values that may lie elsewhere."""


@detector
class LossPlateau(BaseDetector):
    """The loss stops falling although the training is not finished.

    What it looks for: a training loss that never falls, or that stops falling abruptly, unlike the loss of a converging
    run.

    Why it matters: the steps after the onset were wasted.

    How: four indicators, the most reliable first. (1) The validation loss is bit-identical over the last third of the
    evaluations while the training loss shows only noise: the weights do not change. (2) The learning rate is zero, or
    far below its peak, over the last third. (3) The loss never left its first level. (4) A smooth decay
    followed by a constant explains log(loss) much better than a single smooth saturating decay, by the Bayesian
    information criterion (Schwarz, 1978).

    Typical causes: frozen or forgotten parameters, a dead schedule, dead ReLUs, a learning rate that is too low or far
    too high, labels that do not match the inputs, a detached graph.

    What to try: check the gradient norm per layer and the number of parameters that require gradients; check that the
    model can overfit one batch.

    Not reported if the stop coincides with a change of a logged schedule (a task, the weight of a loss term), or if the
    validation loss continues to fall after it.

    Known false positives: a run that starts from converged weights. Losses of adversarial training and reinforcement
    learning are not judged.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Fraction of the run without progress, minimum number of points, evidence (in units of log n) for the abrupt
        stop."""

        share: float = 0.3
        points: int = 20
        evidence: float = 5.0

    code = "LOS003"
    name = "loss-plateau"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        losses, contest = judged_losses(view, self.options.points)
        if not losses:
            raise NotChecked(f"no training loss with {self.options.points} finite points")
        if contest:
            raise NotChecked("competing losses or a reward: a constant loss is normal there")
        series = losses[0]
        found = self._weights_stand_still(view, series) or self._dead_schedule(view, series)
        found = found or (None if still_warms_up(view) else self._never_fell(series))
        found = found or self._broken_line(view, series)
        if found is not None:
            step, why = found
            at = min(int(np.searchsorted(series.step, step)), len(series) - 1)
            rest = series.value[at:]
            yield self.found(
                series,
                at,
                f"{series.tag} stays near {number(median(rest))} from step {series.step[at]} on: {why}",
                end=len(series) - 1,
                evidence={
                    "level": median(rest),
                    "noise": noise(rest),
                    "rows": len(rest),
                    "points": len(series),
                    "why": why,
                    "risen_from": float(series.value[0]) if _risen(series.value, median(rest), noise(rest)) else None,
                },
            )

    def _weights_stand_still(self, view: View, series: Series) -> tuple[int, str] | None:
        for evaluation in (s.finite for s in view.of("val_loss")):
            at = constant_from(evaluation)
            same = len(evaluation) - at
            if same < max(4, self.options.share * len(evaluation)) or digits(float(evaluation.value[-1])) < 3:
                continue
            step = int(evaluation.step[at])
            rest = series.value[series.step >= step]
            if at == 0 and _fell(series.value):
                continue  # stale from the first evaluation on, while the training continued: constant-metric
            if len(rest) >= 8 and flat(rest) and noise(rest) > 0:
                start = int(series.step[0]) if at == 0 else step
                return (
                    start,
                    f"{evaluation.tag} is bit-identical in its last {same} evaluations, so the weights do not change",
                )
        return None

    def _dead_schedule(self, view: View, series: Series) -> tuple[int, str] | None:
        rates = [s.finite for s in view.of("lr") if len(s.finite) >= 5]
        dead = [
            (s, at) for s in rates if (at := _dead_from(s)) is not None and len(s) - at > self.options.share * len(s)
        ]
        if not rates or len(dead) < len(rates):
            return None
        rate, at = dead[0]
        rest = series.value[series.step >= rate.step[at]]
        return (int(rate.step[at]), _small(rate, at)) if len(rest) >= 8 and flat(rest) else None

    def _never_fell(self, series: Series) -> tuple[int, str] | None:
        x = series.value
        level, spread = median(x), noise(x)
        if x.min() == x.max() or spread > 0.05 * abs(level) or x[0] - level > 4 * spread or not flat(x):
            return None
        if _risen(x, level, spread) and (risen := _stays_from(x, level, _near(level, spread))):
            return int(series.step[risen]), f"it rose from {number(x[0])} at step {series.step[0]}, and never came back"
        smooth = centred_median(x, 2 * max(2, len(x) // 20) + 1)
        if float(np.ptp(smooth)) > max(4 * spread / (len(x) / 10) ** 0.5, 0.02 * abs(level)):
            return None
        return int(series.step[0]), "it never fell"

    def _broken_line(self, view: View, series: Series) -> tuple[int, str] | None:
        x = series.value
        n = len(x)
        if n < 40 or series.lowest <= 0:
            return None
        y = np.log(x)
        stride = max(1, n // 400)
        rows = np.arange(0, n - stride + 1, stride)
        y = row_medians(y[: len(rows) * stride].reshape(-1, stride)) if stride > 1 else y
        t = rows / n
        lines = _broken_lines(len(y), stride, n, self.options.share)
        errors = lines.errors(y)
        k = int(lines.kinks[int(np.argmin(errors))])
        before, after = y[:k], y[k:]
        w = max(4, k // 6)
        if k < 3 * w:
            return None
        means = [float(np.add.reduce(y[a : a + w])) / w for a in (k - 3 * w, k - 2 * w, k - w)]
        pace = [means[0] - means[1], means[1] - means[2]]
        if pace[1] < 0.6 * pace[0]:
            return None  # it was slowing down
        third = before[-max(4, k // 3) :]
        place = np.arange(len(third)) - (len(third) - 1) / 2
        slope = float(place @ third / (place @ place)) * len(third)
        spread = noise(after)
        falling = -slope > max(3 * spread / len(third) ** 0.5, 0.03)
        if median(after) > median(before[-w:]) + max(3 * spread / w**0.5, _LEAST_RISE):
            return None  # it did not reach this level by falling, it jumped up to it: loss-spike, divergence
        if not falling or not flat(after) or median(after) < np.log(0.05) + median(before[:5]):
            return None
        least, unit = max(errors.min(), 1e-300), np.log(len(y))
        if any(len(y) * np.log(error / least) / unit < self.options.evidence for error in _smooth_decays(t, y)):
            return None  # one smooth decay that explains it nearly as well is enough
        step = int(series.step[rows[k]])
        explained = (
            _rate_fell(view, step)
            or new_phase(view, step)
            or change_at(view, series, step, near=max(3, n // 50), ends=True, costs="half")
            or _still_improves(view, step)
            or pace[1] > 4 * max(pace[0], noise(before) / w**0.5)  # a drop to the next level, as when the rate is cut
            or before[-w:].mean() - after[:w].mean() > 4 * max(*pace, noise(y) / w**0.5)  # the same, right at this row
        )
        return None if explained else (step, "it stops falling abruptly, while a converging loss slows down gradually")


def _near(level: float, spread: float) -> float:
    return max(_NEAR * spread, _NEAR_LEVEL * abs(level))


def _risen(x: NDArray[np.float64], level: float, spread: float) -> bool:
    """Whether the first value lies clearly below the level at which the loss stays."""
    return bool(level - x[0] > _near(level, spread))


def _stays_from(x: NDArray[np.float64], level: float, near: float) -> int:
    """The first point from which nearly all values lie near the level, if it is one of the first; else 0."""
    far = np.abs(x - level) > near
    first = int(np.flatnonzero(far[: max(3, len(x) // 5)]).max(initial=-1)) + 1
    return first if first < len(x) // 5 and np.mean(far[first:]) < _STRAY else 0


def _fell(x: NDArray[np.float64]) -> bool:
    """Whether the loss left its first level downwards: by more than a tenth and four noises."""
    level = median(x)
    return median(x[:3]) - level > max(0.1 * abs(level), 4 * noise(x))


def _dead_from(rate: Series) -> int | None:
    """The first row from which a learning rate is too small to the end: a smooth schedule may end lower than a cut."""
    at = dead_from(rate, 1e-3)
    cut = at is not None and at > 0 and rate.value[at] < 0.1 * rate.value[at - 1]
    return at if cut else dead_from(rate, 1e-4)


def _small(rate: Series, at: int) -> str:
    """What is said of a learning rate that is too small from row `at` on."""
    rest, peak = rate.value[at:], float(rate.value.max(initial=0.0))
    if not rest.any():
        return f"{rate.tag} is zero"
    on = f" and on to {number(rest[-1])} by step {rate.step[-1]}" if rest[-1] < 0.5 * rest[0] else ""
    return f"{rate.tag} has fallen from {number(peak)} to {number(rest[0])}{on}, which is too small to learn"


def _still_improves(view: View, step: int) -> bool:
    """Whether the validation loss goes on falling after `step`: the training then still has an effect."""
    for series in totals(view, "val_loss", 6):
        after = series.value[series.step >= step]
        third = len(after) // 3
        if third >= 3:
            early, late = after[:third], after[-third:]
            fall = float(median(early) - median(late))
            return bool(fall > max(0.02 * abs(median(early)), 2 * noise(after) / third**0.5))
    return False


def _rate_fell(view: View, step: int) -> bool:
    """Whether the learning rate at `step` is already below half of its peak: then the schedule explains the end."""
    rate = view.main("lr")
    if rate is None or not len(rate.finite):
        return False
    at = int(np.searchsorted(rate.finite.step, step, side="right")) - 1
    return bool(rate.finite.value[max(at, 0)] < 0.5 * rate.finite.value.max())


def _smooth_decays(t: NDArray[np.float64], y: NDArray[np.float64]) -> Iterator[float]:
    """Least squared errors of saturating decays c + a f(t) for y and for exp(y), errors relative to the level.

    f: exponentials, stretched and squared ones, power laws, smooth steps.
    """
    x = np.exp(y - y.mean())
    level, even = centred_median(x, 2 * max(2, len(x) // 20) + 1), np.ones_like(y)
    for f in _decays(t):
        yield _fit_error(f, y, even)
        yield _fit_error(f, x, level)


def _decays(t: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    tau = np.geomspace(0.01, 3.0, 80)[:, None]
    u = t / tau
    yield np.exp(-u)
    yield np.exp(-(u**2))
    yield np.exp(-(u**0.5))
    yield 1 / (1 + u)
    yield (1 + u) ** -0.5
    for s in (10, 16):
        yield 1 / (1 + np.exp(np.minimum(s * (t - tau), 500)))


class _BrokenLines:
    """A parabola up to a point and a constant after it, for each of the points `kinks`.

    What does not depend on the values is worked out once for all runs of one length.
    """

    def __init__(self, t: NDArray[np.float64], kinks: NDArray[np.intp]) -> None:
        self.kinks = kinks
        before = np.arange(len(t)) < kinks[:, None]
        u = t / t[kinks - 1, None]  # up to 1 before the kink, for a well-conditioned system
        parabola, _ = np.linalg.qr(np.stack([np.ones_like(u), u, u * u], axis=2) * before[..., None])
        after = ~before / np.sqrt((~before).sum(axis=1, keepdims=True))
        self.basis = np.concatenate([parabola, after[..., None]], axis=2)
        """float64[kinks, n, 4]: orthonormal, so that the best fit needs no equations to be solved."""

    def errors(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each kink, the squared error of the best parabola before it and the best constant after it."""
        rest = y - np.matmul(self.basis, np.matmul(y, self.basis)[..., None])[..., 0]
        return np.asarray((rest * rest).sum(axis=1))


@lru_cache(maxsize=8)
def _broken_lines(rows: int, stride: int, n: int, share: float) -> _BrokenLines:
    """Those of `rows` points, each of `stride` of n values."""
    kinks = distinct(np.linspace(0.08 * rows, (1 - share) * rows, 60).astype(int))
    return _BrokenLines(np.arange(0, rows * stride, stride) / n, kinks)


def _fit_error(f: NDArray[np.float64], y: NDArray[np.float64], level: NDArray[np.float64]) -> float:
    """The least squared error of c + a f among the rows f, with the best c and a, in units of `level` at each point."""
    weights = level**-2.0
    weights /= (total := weights.sum())
    f, y = f - (f @ weights)[:, None], y - y @ weights
    spread = (f * f) @ weights
    a = np.divide((f * y) @ weights, spread, out=np.zeros_like(spread), where=spread > 1e-24)  # a constant f fits none
    return float(((y - a[:, None] * f) ** 2 @ weights).min() * total)
