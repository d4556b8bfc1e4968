from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, noise, quantile
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.lr_phase import new_phase, no_worse
from postmortem.detectors.shared.regimes import change_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class GradientExplosion(BaseDetector):
    """A gradient norm that rises by orders of magnitude and stays high.

    What it looks for: a gradient norm whose final level is more than `ratio` times its earlier steady level.

    Why it matters: the updates no longer follow the loss surface; the loss diverges or overflows next.

    How: windowed medians of log(gradient norm). The steady level is the lower quartile of the smoothed first part. The
    onset is the last point at which the smoothed norm was still within four noise units of the level it rose from.

    Typical causes: a learning rate that is too high or was raised, weights that grow without weight decay, products of
    Jacobians in deep or recurrent models (Pascanu et al., ICML 2013), a loss that is summed instead of averaged.

    What to try: clip the gradient norm, lower the learning rate, use a longer warm-up, normalise activations.

    Severity: info if a logged schedule changes at that step, or a log message announces a new phase or unfrozen layers
    there, and the loss is no higher afterwards. Warning if the loss is no higher and the norm only rises back to
    where it began.

    Known false positives: norms that start very small (zero-initialised output layers) and grow to their normal size
    early in the run. That part is ignored, and so is a new phase in which the learning rate was set again.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Ratio of the final to the steady level; minimum number of points."""

        ratio: float = 8.0
        points: int = 15

    code = "GRD002"
    name = "gradient-explosion"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        grads = [s for s in view.of("grad_norm") if len(s.finite) >= self.options.points]
        if not grads:
            raise NotChecked(f"no gradient norm with {self.options.points} finite points")
        for raw in grads:
            series = raw.finite
            if series.lowest > 1e-300 and series.highest < 0.999 * self.options.ratio * series.lowest:
                continue
            x = np.log(np.maximum(series.value, 1e-300))
            n = len(x)
            smooth = centred_median(x, 2 * max(1, n // 80) + 1)
            guard = max(2, n // 25)
            tail = median(x[-max(3, n // 10) :])
            end = max(tail, median(x[-3:]))
            held = quantile(smooth[guard : max(guard + 3, n - max(3, n // 10))], 0.25)
            if end - held < np.log(self.options.ratio):
                continue
            spread = max(noise(smooth[guard:]), 0.02)
            low = np.flatnonzero(smooth[:n] <= held + max(4 * spread, 0.15 * (end - held)))
            at = min(int(low[-1]) + 1, n - 1) if len(low) else guard
            step = int(series.step[at])
            if new_phase(view, step):
                continue
            calm = no_worse(view, step)
            change = change_at(view, series, step, costs="half") if calm else None
            back = end <= float(x[:guard].max()) and no_worse(view, step, slack=3.0)
            yield self.found(
                series,
                at,
                f"{series.tag} rises from {number(np.exp(held))} to {number(np.exp(end))} and stays high, "
                f"from step {step} on" + (f", as {change}" if change else ""),
                severity="info" if change else "warning" if back else None,
                evidence={"before": np.exp(held), "end": np.exp(end), "ratio": np.exp(min(end - held, 700))},
            )
