from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.activations import SIZE, is_size_of_activations
from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class ActivationVanishing(BaseDetector):
    """The activations of a layer go to zero and stay there.

    What it looks for: a layer whose activations had values other than zero, and from some step to the end of the log
    have none, or next to none.

    Why it matters: a ReLU whose outputs are all zero passes no gradient on: its weights do not change any more, and the
    network goes on without the layer.

    How: by the root mean square of the activations, `<tag>/rms`, which is read from each TensorBoard histogram whose
    tag names them (act, activation, activations, relu) and may be logged as a scalar as well. It is below `share` of
    its median before in the last `points` values or more, and was above it in as many before. The step is the first
    logged one of those. Of several such layers the first to go is reported, and the others are its evidence. That half
    of the outputs of a ReLU are zero does not matter: the rest keeps the root mean square up.

    Typical causes: a learning rate that is too high, or a spike of the loss, which moved the biases far below zero; a
    weight decay or a regularisation of activations that is too strong; a normalisation whose scale became zero.

    What to try: lower the learning rate or warm it up, clip the gradient, resume from a checkpoint before that step,
    use a LeakyReLU or GELU.

    Known false positives: layers that are pruned or switched off intentionally.

    Not seen: layers whose activations are zero from the first logged step on; a part of the units of a layer;
    histograms of TensorFlow 2, which do not contain the sums.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Fraction of the usual size below which activations count as zero; minimum number of values before and
        after."""

        share: float = 1e-4
        points: int = 4

    code = "GRD004"
    name = "activation-vanishing"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        layers = [
            s.finite for s in view.series if is_size_of_activations(s.tag) and len(s.finite) >= 2 * self.options.points
        ]
        if not layers:
            raise NotChecked(f"no size of activations with {2 * self.options.points} finite values")
        gone = [(series, at) for series in layers if (at := self._gone(series)) is not None]
        if not gone:
            return
        series, at = min(gone, key=lambda found: int(found[0].step[found[1]]))
        before, after = median(series.value[:at]), float(series.value[at:].max())
        others = [other.label for other, _ in gone if other is not series]
        how = "are all zero" if not after else f"fall from a size of {number(before)} to at most {number(after)}"
        more = f"; later or at that step also those of {len(others)} more layers" if others else ""
        yield self.found(
            series,
            at,
            f"the activations of {series.label.removesuffix(SIZE)} {how} from step {series.step[at]} on{more}",
            end=len(series) - 1,
            evidence={"before": before, "after": after, "also": others[:20]},
        )

    def _gone(self, series: Series) -> int | None:
        """The first of the values to the end of the log that are next to nothing; None if the layer is alive."""
        alive = np.flatnonzero(series.value > 0)
        if len(alive) < self.options.points:
            return None
        level = median(series.value[alive[: max(self.options.points, len(alive) // 2)]])
        large = np.flatnonzero(series.value > self.options.share * level)
        at = int(large[-1]) + 1
        return at if len(large) >= self.options.points and len(series) - at >= self.options.points else None
