from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class MaskedNonfinite(BaseDetector):
    """A loss that turns to exactly 0.0 because a logger replaced the NaN.

    What it looks for: a training loss that from one step on is exactly zero to the end, although it was far from
    zero the point before; a gradient norm that is NaN or zero there makes it certain.

    Why it matters: the transformers Trainer replaces NaN and infinite losses before it logs them
    (`logging_nan_inf_filter`, on by default), so a dead run looks like a perfect one.

    How: exact zeros at the end of the series, at least `points` of them, after a value above `before`.

    Typical causes: any cause of nan-onset, hidden by the filter; also labels that are all ignored (-100), or a
    loss multiplied by zero.

    What to try: set logging_nan_inf_filter=False and replay the step; count the labels that are not ignored.

    Known false positives: a loss with a margin (hinge, triplet) that is really solved within one logging interval.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Zeros at the end that are needed, and the least loss before them."""

        points: int = 3
        before: float = 0.05

    code = "NAN004"
    name = "masked-nonfinite"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = view.of("loss")
        if not losses:
            raise NotChecked("no training loss found")
        for series in losses:
            nonzero = np.flatnonzero(series.value != 0)
            if not len(nonzero):
                continue
            at = int(nonzero[-1]) + 1
            recent = series.value[max(0, at - 5) : at]
            zeros = len(series) - at
            if zeros < self.options.points or not np.isfinite(recent).all() or np.median(recent) < self.options.before:
                continue
            grad = view.main("grad_norm")
            dead = None if grad is None else grad.value[grad.step >= series.step[at]]
            certain = dead is not None and len(dead) > 0 and not np.isfinite(dead).any()
            how = "and the gradient norm is not finite" if certain else "no training gets there at once"
            yield self.found(
                series,
                at,
                f"{series.tag} is exactly 0 from step {series.step[at]} on ({zeros} points) "
                f"after {number(recent[-1])}; {how}: a NaN was replaced",
                evidence={"before": recent[-1], "zeros": zeros, "gradient_norm_not_finite": certain},
            )
