from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.chance import excuses
from postmortem.detectors.shared.regimes import change_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_ROLES = ("reward", "val_accuracy", "accuracy")
_OPPONENT = later(
    r"(?i)(?:^|[/_. ])(?:d|dis|disc\w*|domain\w*|real|fake|rejected|std|min|max|timing|int"
    r"|intrinsic|curiosity|bonus|novelty)"
    r"(?:$|[/_. ])"
)
"""Scores that fall where all is well: of a fooled discriminator, of a domain classifier, of rejected answers, and the
rewards for what is new, which wear off. The largest value and a duration say nothing of the mean."""
_ENTROPY = re.compile(r"(?i)entropy")
_UPDATE = later(r"(?i)(?:^|[/_. ])(?:approx_?)?kl(?:$|[/_. ]|_?div)|clip_?frac")
_JUMP = 5.0
"""Measures of how far an update moved the policy, and the ratio to their level from which one is a jump."""


class _Course(NamedTuple):
    """How a score went: `smooth` is without its noise; it left its top at point `fell` and was down at `down`."""

    series: Series
    smooth: NDArray[np.float64]
    first: float
    top: float
    fell: int
    down: int


@detector
class ScoreCollapse(BaseDetector):
    """A score or reward rises, then falls back to its level at the start, and stays there to the end of the log.

    What it looks for: an accuracy or a reward that permanently loses nearly all of its gain.

    Why it matters: the progress is lost. The last checkpoint is useless, an earlier one may be usable.

    How: the running median has to rise by at least `gain` times its noise and a fifth of its maximum, lose three
    quarters of that again, and stay low for at least the last `lasting` of the run. A score that recovers in between is
    not reported, nor is one if another score of the same role keeps its gain.

    Typical causes: an update that is too large (policy collapse: the entropy falls to zero, then nothing is explored),
    a learning rate that does not decay, no limit on the change of the policy (KL, clip range), catastrophic overfitting
    in adversarial training, labels or rewards that changed.

    What to try: continue from the checkpoint before the fall with a lower learning rate, more entropy bonus or a
    tighter KL limit; look at the loss, the gradient norm, the entropy and the KL divergence at the step of the fall.

    Severity: info if a logged schedule (a task, a difficulty) changes at the step of the fall, or a log message
    announces a new phase there, unless a classifier is at chance level from then on.

    Known false positives: a log that ends in a long dip of reinforcement learning; a new task that is not logged.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Minimum number of points; gain in units of the noise; fraction of the run for which the score stays down."""

        points: int = 20
        gain: float = 5.0
        lasting: float = 0.15

    code = "LOS007"
    name = "score-collapse"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        long = [s.finite for s in view.of(*_ROLES) if len(s.finite) >= self.options.points]
        if not long:
            raise NotChecked(f"no score or reward with {self.options.points} finite points")
        for role in _ROLES:
            scores = [s for s in long if s.role == role and not _OPPONENT.search(s.tag)]
            courses = [course for s in scores if (course := self._course(s)) is not None]
            if courses and not any(self._keeps_gain(s) for s in scores):
                yield self._finding(view, courses[0])
                return
            if scores:
                return

    def _course(self, series: Series) -> _Course | None:
        """The course of a series that collapses for good; None for any other."""
        x, n = series.value, len(series)
        smooth = centred_median(x, max(5, n // 20) | 1)
        first, top = min(median(x[: max(3, n // 20)]), median(x[:5])), float(smooth.max())  # a long one rises at once
        gain = top - first
        if not np.isfinite(gain) or gain <= self.options.gain * noise(x) or gain < 0.2 * abs(top):
            return None
        fell = int(np.flatnonzero(smooth >= first + 0.75 * gain)[-1]) + 1
        low = np.flatnonzero(smooth[fell:] <= first + 0.25 * gain)
        if not len(low):
            return None
        down = fell + int(low[0])
        rest = smooth[down:]
        if len(rest) < max(5, self.options.lasting * n) or rest.max() > first + 0.5 * gain:
            return None
        return _Course(series, smooth, first, top, fell, down) if median(rest) <= first + 0.25 * gain else None

    @staticmethod
    def _keeps_gain(series: Series) -> bool:
        """Whether a score rose and ends near its top."""
        x, n = series.value, len(series)
        first, top = median(x[: max(3, n // 20)]), float(centred_median(x, 5).max())
        return top > first and median(x[-max(3, n // 10) :]) > first + 0.6 * (top - first)

    def _finding(self, view: View, course: _Course) -> Finding:
        series, step = course.series, course.series.step
        end = median(series.value[course.down :])
        fell = int(step[min(course.fell, len(step) - 1)])
        change = change_at(view, series, fell, near=5, costs="all") if excuses(view, fell) else None
        return self.found(
            series,
            course.fell,
            f"{series.tag} rises from {number(course.first)} to {number(course.top)}, falls from step "
            f"{step[course.fell]} on, and stays at about {number(end)} from step {step[course.down]} to the end"
            + (f", as {change}" if change else _update(view, fell) + _deterministic(view, int(step[course.down]))),
            severity="info" if change else None,
            end=len(series) - 1,
            evidence={"first": course.first, "top": course.top, "end": end, "down_since": step[course.down]},
        )


def _update(view: View, fell: int) -> str:
    """In words: the measure of the size of an update that jumped shortly before the fall, if one is logged."""
    for series in (s.finite for s in view.series if _UPDATE.search(s.tag)):
        until = int(np.searchsorted(series.step, fell, side="right"))
        start = max(10, until - max(6, len(series) // 50))
        for at in range(start, until):
            before = series.value[max(0, start - 25) : at]
            level = median(before)
            if level > 0 and series.value[at] > max(_JUMP * level, 2 * float(before.max())):
                return (
                    f"; {series.tag} jumps from {number(series.value[at - 1])} at step {series.step[at - 1]} to "
                    f"{number(series.value[at])} at step {series.step[at]}: the update there may have been too large "
                    "(lower the learning rate, the clip range or the target of the KL divergence)"
                )
    return ""


def _deterministic(view: View, step: int) -> str:
    """In words: the entropy of the policy that is lost since a step, if one is logged."""
    for series in (s.finite for s in view.series if _ENTROPY.search(s.tag)):
        size, after = np.abs(series.value), series.step >= step
        if after.any() and median(size[after]) < 0.02 * float(size.max()):
            return f"; {series.tag} is near zero since: the policy no longer explores"
    return ""
