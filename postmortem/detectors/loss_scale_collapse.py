from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class LossScaleCollapse(BaseDetector):
    """The dynamic loss scale keeps falling: every step overflows and is skipped.

    What it looks for: a loss scale that is halved repeatedly and ends far below its highest value.

    Why it matters: the scaler halves the scale after each step with a non-finite gradient and skips the update.
    Repeated halving means that no scale is low enough: the gradients themselves are non-finite, and the model does not
    learn.

    How: the highest value divided by the last one is at least `ratio`, most of the fall happens within a tenth of the
    run, and the scale does not recover.  Micikevicius et al. (ICLR 2018) describe loss scaling.

    Typical causes: a NaN or infinity in the forward pass or in the weights, an activation above 65504 in fp16, a loss
    computed in fp16, a learning rate that is too high.

    What to try: replay the first skipped step; use bf16 or fp32 for the part that overflows; compute the loss in fp32.

    Known false positives: a slow fall of the scale over a long run while the loss falls, and the search for the initial
    scale, are normal and not reported.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Highest value divided by the last; fraction of the run within which most of the fall happens."""

        ratio: float = 64.0
        within: float = 0.1

    code = "AMP001"
    name = "loss-scale-collapse"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        scales = [s.finite for s in view.of("loss_scale") if len(s.finite) > 3]
        if not scales:
            raise NotChecked("no loss scale found")
        for series in scales:
            at = self._onset(series)
            if at is None:
                continue
            high, low = series.value[max(0, at - 1)], series.value[-1]
            yield self.found(
                series,
                at,
                f"{series.tag} falls from {number(high)} to {number(low)} and does not recover, "
                f"from step {series.step[at]} on",
                end=len(series) - 1,
                evidence={"before": high, "end": low, "lowest": series.value.min()},
            )

    def _onset(self, series: Series) -> int | None:
        x = np.log2(np.maximum(series.value, 2.0**-1000))
        n = len(x)
        need = np.log2(self.options.ratio)
        if x.max() - x[-1] < need:
            return None
        fall = np.maximum.accumulate(x) - x
        reached = np.flatnonzero(fall >= need)
        settled = np.flatnonzero(fall < need)
        low = int(settled[-1]) + 1 if len(settled) else int(reached[0])  # it stays low from here on
        window = max(2, int(self.options.within * n))
        start = max(0, low - window)
        if x[start : low + 1].max() - x[min(low + window, n - 1)] < need:
            return None  # slow: one halving now and then
        if self._search(x):
            return None
        before = x[start : low + 1]
        top = start + int(np.flatnonzero(before == before.max())[-1])
        return min(top + 1, n - 1)

    @staticmethod
    def _search(x: NDArray[np.float64]) -> bool:
        """True if the fall is the search for the first scale: halving from the first row on, then a usable level."""
        early = x[: max(3, len(x) // 4)]
        low = int(early.argmin())
        return bool(early[low] >= 4 and (np.diff(early[: low + 1]) <= 0).all() and x[low:].min() >= early[low] - 2)
