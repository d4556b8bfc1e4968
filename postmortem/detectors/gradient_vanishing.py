from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, quantile
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class GradientVanishing(BaseDetector):
    """The gradient norm falls close to zero while the loss is still high.

    What it looks for: a gradient norm that falls to a small fraction of its level although the loss did not; and layers
    whose gradient norm is a tiny fraction of that of other layers from the start.

    Why it matters: weights without a gradient do not learn; the loss stagnates at a level that is not an optimum.

    How: windowed medians: the final level is below 1/`ratio` of the earlier steady level, with the loss above
    `loss_left` of its first level. Per layer: the median norm of the first layer is below `layers` times that of the
    last (Glorot and Bengio, AISTATS 2010, describe the pattern).

    Typical causes: saturated sigmoids or softmax, dead ReLUs, deep stacks without normalisation or residuals, fp16
    gradients that underflow, a loss multiplied by a factor that approaches zero, frozen parameters.

    What to try: check the norms per layer; add residual connections or normalisation; change the initialisation; use
    loss scaling.

    Known false positives: a model that has solved its task, where the loss falls together with the gradient, is not
    reported.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Steady over final level, remaining fraction of the first loss, ratio between layers, minimum number of
        points."""

        ratio: float = 50.0
        loss_left: float = 0.05
        layers: float = 1e-4
        points: int = 10

    code = "GRD003"
    name = "gradient-vanishing"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        grads = [s.finite for s in view.of("grad_norm") if len(s.finite) >= self.options.points]
        layers = [s.finite for s in view.of("layer_grad_norm") if len(s.finite) >= self.options.points]
        if not grads and not layers:
            raise NotChecked(f"no gradient norm with {self.options.points} finite points")
        if self._solved(view):
            return
        faded = [f for s in grads or layers if (f := self._fades(s))]
        yield from faded
        if not faded and len(layers) >= 3 and (finding := self._starved(view, layers)):
            yield finding

    def _solved(self, view: View) -> bool:
        loss = view.main("loss")
        if loss is None or len(loss.finite) < 5:
            return False
        x = loss.finite.value
        first, last = median(x[: max(3, len(x) // 20)]), median(x[-max(3, len(x) // 20) :])
        return bool(first > 0 and last < self.options.loss_left * first)

    def _fades(self, series: Series) -> Finding | None:
        if series.lowest > 1e-30 and series.highest < 0.999 * self.options.ratio * series.lowest:
            return None
        x = np.log(np.maximum(series.value, 1e-30))
        n = len(x)
        smooth = centred_median(x, 2 * max(1, n // 100) + 1)
        end = median(x[-max(3, n // 20) :])
        held = quantile(smooth[: max(3, n // 2)], 0.75)
        if held - end < np.log(self.options.ratio):
            return None
        smooth = np.maximum(smooth, held - np.log(1e4))  # a printed zero has no depth
        end = max(end, float(smooth[-1]))
        above = np.flatnonzero(smooth > end + 0.1 * (held - end))
        if not len(above):
            return None
        low = int(above[-1]) + 1
        chord = smooth[0] + (smooth[min(low, n - 1)] - smooth[0]) * np.arange(low) / max(low, 1)
        at = min(int(np.argmax(smooth[:low] - chord)) + 1, n - 1)  # the knee: farthest above the straight line down
        last = median(series.value[-max(3, n // 20) :])
        return self.found(
            series,
            at,
            f"{series.tag} falls from {number(np.exp(held))} to {number(last)} from step {series.step[at]} on, "
            "with the loss still high",
            end=n - 1,
            evidence={"before": np.exp(held), "end": np.exp(end)},
        )

    def _starved(self, view: View, layers: list[Series]) -> Finding | None:
        judged = {(layer.tag, layer.rank) for layer in layers}
        ordered = [s for s in view.series if s.role == "layer_grad_norm" and (s.tag, s.rank) in judged]
        level = np.array([median(s.finite.value) for s in ordered])
        top = float(level.max())
        low = int(np.argmin(level))
        if not top > 0 or level[low] >= self.options.layers * top:
            return None
        series = ordered[low].finite
        best = ordered[int(np.argmax(level))]
        return self.found(
            series,
            0,
            f"{series.tag} is {number(level[low])} where {best.tag} is {number(top)}: hardly any gradient reaches it",
            end=len(series) - 1,
            evidence={"median": level[low], "largest": top, "largest_tag": best.tag},
        )
