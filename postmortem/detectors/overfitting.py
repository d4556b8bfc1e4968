from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.roles import is_held_out, is_total
from postmortem.core.stats import centred_median, median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.losses import totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_KEPT = 0.75
"""Share of the gain of a score that is left at the end of one that keeps improving."""

_OF_TESTS = later(
    r"^(?!.*train)(?:.*[\W_])?(?:mAP|AP|mean_?AP|mIo?U|HOTA|MOTA|IDF1|BLEU|ROUGE|CIDEr|NDCG|MRR|PQ)(?:$|[\W_\d])", re.I
)
"""Scores of detection, tracking, segmentation, translation and ranking: they are computed in evaluations."""


@detector
class Overfitting(BaseDetector):
    """The validation loss starts to rise while the training loss continues to fall.

    What it looks for: a validation loss that ends well above its best value, with a training loss lower than it was at
    that point.

    Why it matters: the best weights are those of the best step, not the last ones; the steps after it were wasted.

    How: medians of neighbouring points. The end is more than `rise` above the lowest value and more than
    `z` times the evaluation noise, and the training loss has fallen by `train_down` or more since then. The
    reported step is that of the best value; the values named are logged at the steps named.

    Typical causes: too many epochs, too little data or regularisation, a training set that repeats.

    What to try: use the checkpoint of the best step; stop early; add weight decay, dropout or more data.

    Severity: info if a validation accuracy improves and keeps its gain: confident errors cost more, but there are
    fewer. Info as well if the rise is less than `little` and no validation accuracy gets worse, unless the loss ends
    above where it began. If no accuracy is named as a validation metric, one that is logged as rarely as the
    evaluations is used. A component of the validation loss counts only if the sum of the components rises. Where no
    training loss is logged, a validation loss that doubles (`alone`) without a better accuracy is reported, which may
    be a training that diverges as well.

    Known false positives: a validation loss that rises because confident errors cost more, where no accuracy is logged.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Rise over the best value as a fraction, the least one that matters where no score gets worse, and in noise
        units; fall of the training loss; minimum number of evaluations; the rise and their number where no training
        loss is logged."""

        rise: float = 0.1
        little: float = 0.25
        z: float = 3.0
        train_down: float = 0.03
        points: int = 6
        alone: float = 1.0
        many: int = 12

    code = "LOS006"
    name = "overfitting"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        train = next(iter(totals(view, "loss", 3)), None)
        evaluations = totals(view, "val_loss", self.options.points)
        if not evaluations or (train is None and len(evaluations[0]) < self.options.many):
            raise NotChecked(f"no training loss with {self.options.points} evaluations")
        if train is None:
            alone = (self._alone(view, series) for series in evaluations if is_total(series.tag))
            yield from list(filter(None, alone))[:1]
            return
        for series in evaluations:
            finding = self._judge(view, series, train)
            if finding and (is_total(series.tag) or self._sum_rises(view, evaluations, train)):
                yield finding
                return

    def _all_lost(self, x: NDArray[np.float64], least: float, end: float) -> bool:
        """Whether a validation loss that had clearly fallen ends above where it began."""
        first = median(x[:3])
        return bool(end > first > (1 + self.options.rise) * least)

    def _alone(self, view: View, series: Series) -> Finding | None:
        """A validation loss that ends far above its best value, where nothing tells what the training loss did."""
        x, smooth = series.value, centred_median(series.value, 3)
        best = int(np.argmin(smooth))
        least, end = float(smooth[best]), median(x[-max(3, len(x) // 10) :])
        if least <= 0 or end < (1 + self.options.alone) * least or end - least < self.options.z * noise(x[best:]):
            return None
        if any(_better(score.finite, int(series.step[best])) for score in view.of("val_accuracy") if len(score.finite)):
            return None
        high_step, high = _rows(series, best, self.options.rise)
        return self.found(
            series,
            best,
            f"{series.tag} is best at step {series.step[best]} ({number(x[best])}) and rises to {number(high)} at step "
            f"{high_step}; no training loss is logged that tells overfitting from a training that diverges",
            end=len(series) - 1,
            evidence={"best": float(x[best]), "best_step": int(series.step[best]), "end": high, "end_step": high_step},
        )

    def _sum_rises(self, view: View, parts: list[Series], train: Series) -> bool:
        """Whether the sum of the validation losses rises as well, where no total is logged."""
        alike = [s for s in parts if len(s) == len(parts[0]) and (s.step == parts[0].step).all()]
        total = replace(parts[0], value=np.sum([s.value for s in alike], axis=0))
        finding = self._judge(view, total, train)
        return finding is not None and finding.severity != "info"

    def _judge(self, view: View, series: Series, train: Series) -> Finding | None:
        x = series.value
        if x.min() <= 0:
            return None
        smooth = centred_median(x, 3)
        near = int(np.argmin(smooth))
        best = max(0, near - 1) + int(np.argmin(x[max(0, near - 1) : near + 2]))
        end = median(x[-max(3, len(x) // 10) :])
        least = float(smooth[best])
        if end < (1 + self.options.rise) * least or end - least < self.options.z * noise(x[max(0, best - 2) :]):
            return None
        then, now = _around(train, int(series.step[best])), train.take(slice(-max(3, len(train) // 10), None))
        if then is None or median(now.value) > (1 - self.options.train_down) * median(then.value):
            return None
        high_row = _rows(series, best, self.options.rise)
        train_rows = _train_rows(then, now, int(series.step[best]))
        scores = [s for s in view.of("val_accuracy") or _of_evaluations(view, train) if len(s.finite)]
        scores = [s for s in scores if len(s) == len(series) and (s.step == series.step).all()] or scores  # beside it
        (high_step, high), ((then_step, was), (now_step, became)) = high_row, train_rows
        evidence: dict[str, float] = {
            "best": float(x[best]),
            "best_step": int(series.step[best]),
            "end": high,
            "end_step": high_step,
            "train_at_best": was,
            "train_end": became,
        }
        better = next((s for s in scores if _better(s.finite, int(series.step[best]))), None)
        rates = _error_rates(view, train)
        better = better or next((s for s in rates if _fewer(s.finite, int(series.step[best]))), None)
        held = None
        if better is None and end < (1 + self.options.little) * least and not self._all_lost(x, least, end):
            judged = scores or [replace(s, value=-s.value) for s in rates]
            held = judged[0] if judged and all(_holds(s.finite, int(series.step[best])) for s in judged) else None
        if scores:
            evidence["accuracy_end"] = float((better or scores[0]).finite.value[-1])
        return self.found(
            series,
            best,
            f"{series.tag} is best at step {series.step[best]} ({number(x[best])}) and rises to {number(high)} at step "
            f"{high_step}, while {train.tag} falls from {number(was)} at step {then_step} to {number(became)} at step "
            f"{now_step}"
            + (f" and {better.tag} improves" if better is not None else "")
            + (f" and {held.tag} gets no worse" if held is not None else ""),
            severity="info" if better is not None or held is not None else None,
            end=len(series) - 1,
            evidence=evidence,
        )


def _of_evaluations(view: View, train: Series) -> list[Series]:
    """The scores without a split in their names that are logged far more rarely than the training, or that nobody
    computes on the data of the training: of evaluations."""
    return [s for s in view.of("accuracy") if 5 * len(s) <= len(train) or _OF_TESTS.search(s.tag)]


def _better(score: Series, step: int) -> bool:
    """Whether a score has improved clearly since a step: a twentieth of what was missing, and more than its noise.

    One that gave a quarter of its gain back is past its best as well.
    """
    x = score.value
    at = int(np.searchsorted(score.step, step))
    if at >= len(x):
        return False
    then, now = (median(part) for part in (x[at : at + max(3, len(x) // 20)], x[-max(3, len(x) // 10) :]))
    top = 100.0 if x.max() > 1 else 1.0
    best = float(centred_median(x[at:], 3).max())
    return now - then > max(0.05 * (top - then), 2 * noise(x), _KEPT * (best - then))


def _holds(score: Series, step: int) -> bool:
    """Whether a score is at its end no lower than around a step, but for its noise."""
    x = score.value
    at = int(np.searchsorted(score.step, step))
    if len(x) - at < 6:
        return False
    then, now = median(x[max(0, at - 2) : at + 3]), median(x[-max(3, len(x) // 10) :])
    return now >= then - 2 * noise(x[at:])


_ERROR_RATE = later(
    r"(?i)(?:^|[/_ .-])(?:[wcpdtme]er"
    r"|(?:(?:word|char(?:acter)?|phone(?:me)?|token|class|cls|top[ -]?\d)[_ ])?err(?:or)?s?(?:[_ ]rate)?"
    r"|nme|(?:pa[_ -]?|n[_ -]?)?mpj[pv]e|a?epe|fid|kid|add?e|fde|n?r?mae|n?rmse|s?mape)(?:$|[/_ .@(-])"
)
"""Shares of words, samples and so on that are wrong, and distances from the truth: they are to fall."""


def _error_rates(view: View, train: Series) -> list[Series]:
    """The error rates of evaluations: they say so, or are logged far more rarely than the training."""
    found = (s for s in view.series if s.role in (None, "val_loss") and _ERROR_RATE.search(s.tag))
    return [s for s in found if len(s.finite) > 1 and (5 * len(s) <= len(train) or is_held_out(s.tag))]


def _fewer(rate: Series, step: int) -> bool:
    """Whether an error rate has fallen further since a step: by a hundredth at its best, and it stayed below."""
    x = rate.value
    at = int(np.searchsorted(rate.step, step))
    return at < len(x) - 1 and bool(x[at:].min() < 0.99 * x[at] and median(x[-max(3, len(x) // 10) :]) < x[at])


def _around(series: Series, step: int) -> Series | None:
    """The points nearest to a step; None if the series ends far before it."""
    if not len(series):
        return None
    at = int(np.searchsorted(series.step, step))
    half = max(2, len(series) // 40)
    return series.take(slice(max(0, at - half), at + half + 1)) if at - half < len(series) else None


def _rows(series: Series, best: int, rise: float) -> tuple[int, float]:
    """Step and value of the row that shows how far a loss rose: the last one, or if that is low by chance, another of
    the end."""
    end = series.take(slice(-max(3, len(series) // 10), None))
    at = len(end) - 1
    if end.value[at] < (1 + rise) * series.value[best]:
        at = _nearest(end.value, median(end.value))
    return int(end.step[at]), float(end.value[at])


def _train_rows(then: Series, now: Series, step: int) -> tuple[tuple[int, float], tuple[int, float]]:
    """Steps and values of two rows of the training loss, at the best step and at the end.

    The row of the step itself and the last row, unless the noise of single batches hides the fall: then those nearest
    to the medians around them.
    """
    first, last = max(0, int(np.searchsorted(then.step, step, side="right")) - 1), len(now) - 1
    fall = median(then.value) - median(now.value)
    if then.value[first] - now.value[last] < fall / 2:
        first, last = _nearest(then.value, median(then.value)), _nearest(now.value, median(now.value))
    return (int(then.step[first]), float(then.value[first])), (int(now.step[last]), float(now.value[last]))


def _nearest(x: NDArray[np.float64], level: float) -> int:
    """The point whose value is nearest to `level`."""
    return int(np.argmin(np.abs(x - level)))
