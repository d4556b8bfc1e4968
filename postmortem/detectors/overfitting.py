from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.losses import totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class Overfitting(BaseDetector):
    """The validation loss turns and rises while the training loss goes on falling.

    What it looks for: a validation loss that ends well above its best, with the training loss lower than it was at
    that best.

    Why it matters: the best weights are those of the best step, not the last ones; everything after it was time lost.

    How: medians of neighbours; the end is more than `rise` above the least value and more than `z` times the
    evaluation noise, and the training loss fell by `train_down` or more since. The step is that of the best value.

    Typical causes: too many epochs, too little data or regularisation, a training set that repeats.

    What to try: early stopping at the best step, its checkpoint, weight decay, dropout, more data.

    Known false positives: a validation loss that rises because confident mistakes cost more while the accuracy still
    improves (it is reported, the accuracy is in the evidence).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Rise over the best as a share, in noises, fall of the training loss, least number of evaluations."""

        rise: float = 0.1
        z: float = 3.0
        train_down: float = 0.03
        points: int = 6

    code = "LOS006"
    name = "overfitting"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        train = next(iter(totals(view, "loss", 3)), None)
        evaluations = totals(view, "val_loss", self.options.points)
        if train is None or not evaluations:
            raise NotChecked(f"no training loss with {self.options.points} evaluations beside it")
        for series in evaluations:
            if finding := self._judge(view, series, train):
                yield finding
                return

    def _judge(self, view: View, series: Series, train: Series) -> Finding | None:
        x = series.value
        if x.min() <= 0:
            return None
        smooth = centred_median(x, 3)
        near = int(np.argmin(smooth))
        best = max(0, near - 1) + int(np.argmin(x[max(0, near - 1) : near + 2]))
        end = float(np.median(x[-max(3, len(x) // 10) :]))
        least = float(smooth[best])
        if end < (1 + self.options.rise) * least or end - least < self.options.z * noise(x[max(0, best - 2) :]):
            return None
        then, now = _around(train, int(series.step[best])), float(np.median(train.value[-max(3, len(train) // 10) :]))
        if then is None or now > (1 - self.options.train_down) * then:
            return None
        score = view.main("val_accuracy")
        evidence = {"best": least, "end": end, "train_at_best": then, "train_end": now}
        if score is not None and len(score.finite):
            evidence["accuracy_end"] = float(score.finite.value[-1])
        return self.found(
            series,
            best,
            f"{series.tag} is best at step {series.step[best]} ({number(least)}) and rises to {number(end)}, "
            f"while {train.tag} falls from {number(then)} to {number(now)}",
            end=len(series) - 1,
            evidence=evidence,
        )


def _around(series: Series, step: int) -> float | None:
    """The median of the points nearest to a step."""
    if not len(series):
        return None
    at = int(np.searchsorted(series.step, step))
    half = max(2, len(series) // 40)
    return float(np.median(series.value[max(0, at - half) : at + half + 1])) if at - half < len(series) else None
