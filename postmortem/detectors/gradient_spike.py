from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.excursions import excursions, outstanding, residuals
from postmortem.detectors.shared.lr_phase import new_phase, warm_restart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class GradientSpike(BaseDetector):
    """A gradient norm far above its own level for a few steps.

    What it looks for: one to three jumps of the gradient norm that come back within a tenth of the run.

    Why it matters: one such update can throw the weights out of the region that was learned; it often comes a
    few steps before a loss spike and names the batch.

    How: residuals of the logarithm to the median of the 25 points before, in units of their median absolute
    deviation (Hampel's identifier, JASA 69, 1974); above `z` of them, `ratio` times the level before and
    `gap` times as high, in log, as the run's next independent excursion.

    Typical causes: a corrupt or very long sample, a rare class, loss terms divided by a small number, a learning
    rate near the edge of stability.

    What to try: replay the step, look at the batch, clip the gradient norm (the value before the spike is a good
    limit).

    Known false positives: norms logged after clipping hide spikes; reinforcement learning and GANs have heavy
    tails, where only a spike that stands apart is reported.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Noise units, ratio to the level before, gap to the next excursion, share of the run left out at its start."""

        z: float = 5.0
        ratio: float = 3.5
        gap: float = 1.6
        guard: float = 0.04
        points: int = 30
        longest: float = 0.1

    code = "GRD001"
    name = "gradient-spike"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        grads = [s for s in view.of("grad_norm") if len(s.finite) >= self.options.points]
        if not grads:
            raise NotChecked(f"no gradient norm with {self.options.points} finite points")
        for series in grads:
            res = residuals(view, series)
            if not res.log:
                continue
            n = len(res.rise)
            start = max(5, int(self.options.guard * n))
            found = excursions(res, self.options.z, math.log(self.options.ratio), start)
            for spike in sorted(outstanding(res, found, self.options.gap, start), key=lambda e: e.first):
                lasting = spike.last - spike.first + 1 > max(5, self.options.longest * n) or spike.last == n - 1
                step = int(res.series.step[spike.first])
                if lasting or new_phase(view, step) or warm_restart(view, step):
                    continue
                before, peak = math.exp(res.base[spike.first]), res.series.value[spike.peak]
                yield self.found(
                    res.series,
                    spike.first,
                    f"{series.tag} jumps from {number(before)} to {number(peak)} at step {step} and comes back",
                    end=spike.last,
                    evidence={"before": before, "peak": peak, "peak_step": res.series.step[spike.peak], "z": spike.z},
                )
