from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.frozen import constant_from, digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_VARYING = ("loss", "val_loss", "grad_norm", "layer_grad_norm", "perplexity", "reward")
_SCORES = ("accuracy", "val_accuracy")


@detector
class ConstantMetric(BaseDetector):
    """A quantity that should vary is bit-identical over a large part of the run.

    What it looks for: a loss, gradient norm, score or reward that repeats exactly the same number to the end.

    Why it matters: either the number is not computed anew (a stale variable, a cached evaluation), or nothing
    changes in the model.

    How: exact equality of the logged values over the last `share` of the points, at least `points` of them; values
    with so few printed digits that rounding explains the repetition are left out.

    Typical causes: a metric that is never reset or updated, an evaluation on an old copy of the model, predictions
    of one class only, all parameters frozen, an optimizer over the wrong parameters.

    What to try: print the metric's inputs at two steps; compare the weights of two checkpoints.

    Known false positives: scores that are saturated (1, 100 %) are not reported; a norm logged after clipping is
    constant at the limit, which has few digits.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Share of the points and least number of points that are identical; least digits of the value."""

        share: float = 0.3
        points: int = 8
        digits: int = 3

    code = "LOS004"
    name = "constant-metric"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        watched = [s.finite for s in view.of(*_VARYING, *_SCORES) if len(s.finite) >= self.options.points]
        if not watched:
            raise NotChecked(f"no loss, gradient norm or score with {self.options.points} points")
        for series in watched:
            at = constant_from(series)
            rows = len(series) - at
            if rows < max(self.options.points, self.options.share * len(series)) or not self._telling(series, at):
                continue
            since = "from its first point on" if at == 0 else f"from step {series.step[at]} on"
            yield self.found(
                series,
                at,
                f"{series.tag} is exactly {number(series.value[-1])} {since}, in {rows} of {len(series)} points",
                end=len(series) - 1,
                evidence={"value": series.value[-1], "rows": rows, "points": len(series)},
            )

    def _telling(self, series: Series, at: int) -> bool:
        """Whether the repetition cannot be explained by saturation or rounding."""
        value = float(series.value[-1])
        if series.role in _SCORES:
            saturated = value in (0.0, 1.0, 100.0)  # a score of zero has not begun yet
            best = float(np.max(series.value[:at], initial=-np.inf))
            return not saturated and (at == 0 or value < 0.95 * best)
        if series.role == "loss" and value == 0 and at > 0:
            return False  # masked-nonfinite
        return digits(value) >= int(self.options.digits)
