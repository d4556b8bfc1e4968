from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.adversarial import collapse
from postmortem.detectors.shared.losses import is_of_discriminator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View

_USUALLY = 0.1
"""The share of exact zeros from which on a loss is nothing by itself, as that of a pair that is far enough apart."""


@detector
class MaskedNonfinite(BaseDetector):
    """A loss that becomes exactly 0.0, as happens when a logger replaces a NaN.

    What it looks for: a training loss that becomes exactly zero and stays zero until the end, although it was far from
    zero at the previous point. A gradient norm that is NaN or zero there confirms it.

    Why it matters: the transformers Trainer replaces NaN and infinite losses before logging them
    (`logging_nan_inf_filter`, on by default), so a dead run looks like a perfect one.

    How: at least `points` exact zeros at the end of the series, after a value above `before`. After any non-zero value
    if every score falls to less than half of its value there, since a perfect loss with useless scores is not a
    success. A loss of which more than a tenth was exactly 0 before is passed over, unless the scores fall.

    Typical causes: any cause of nan-onset, hidden by the filter; also batches in which all labels are ignored (-100),
    or a loss multiplied by zero.

    What to try: set logging_nan_inf_filter=False and replay the step; count the labels that are not ignored.

    Known false positives: a loss with a margin (hinge, triplet) that really reaches zero within one logging interval.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Minimum number of zeros at the end, and minimum loss before them."""

        points: int = 3
        before: float = 0.05

    code = "NAN004"
    name = "masked-nonfinite"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = view.of("loss")
        if not losses:
            raise NotChecked("no training loss found")
        won = collapse(view)
        for series in losses:
            if won is not None and is_of_discriminator(series):
                continue  # its loss is nothing because it never errs
            if len(series) and series.value[-1] != 0 and self.options.points > 0:
                continue
            nonzero = np.flatnonzero(series.value != 0)
            if not len(nonzero):
                continue
            at = int(nonzero[-1]) + 1
            recent = series.value[max(0, at - 5) : at]
            zeros = len(series) - at
            if zeros < self.options.points or not np.isfinite(recent).all():
                continue
            lost = _lost_scores(view, int(series.step[at]))
            if not lost and np.mean(series.value[:at] == 0) > _USUALLY:
                continue
            if median(recent) < self.options.before and not lost:
                continue
            grad = view.main("grad_norm")
            dead = None if grad is None else grad.value[grad.step >= series.step[at]]
            certain = dead is not None and len(dead) > 0 and not np.isfinite(dead).any()
            how = "a logger may have replaced a NaN"
            if certain:
                how = "the gradient norm is non-finite, so a logger likely replaced a NaN"
            no_gradient = dead is not None and len(dead) > 0 and not dead.any()
            if no_gradient and grad is not None:
                how = f"{grad.tag} is 0 from there as well: the loss may have no targets, or be multiplied by 0; or "
                how += "the program may have replaced a NaN"
            scores = f", and {' and '.join(lost[:3])} {'falls' if len(lost) == 1 else 'fall'}" if lost else ""
            yield self.found(
                series,
                at,
                f"{series.tag} is exactly 0 from step {series.step[at]} on ({zeros} points) "
                f"after {number(recent[-1])}{scores}: {how}",
                evidence={
                    "before": recent[-1],
                    "zeros": zeros,
                    "gradient_norm_not_finite": certain,
                    "gradient_norm_zero": no_gradient,
                    "scores_lost": lost,
                },
            )


def _lost_scores(view: View, step: int) -> list[str]:
    """The tags of the scores that are zero or less than half as high since a step, if all are."""
    scores = [s.finite for s in view.of("val_accuracy", "accuracy")]
    since = [(s.tag, s.value[s.step < step], s.value[s.step >= step]) for s in scores]
    both = [(tag, before, after) for tag, before, after in since if len(before) and len(after) >= 2]
    lost = [tag for tag, before, after in both if float(np.max(after)) < median(before[-5:]) / 2]
    return lost if len(lost) == len(both) else []
