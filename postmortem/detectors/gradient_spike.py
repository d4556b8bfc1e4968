from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.excursions import excursions, outstanding, residuals
from postmortem.detectors.shared.lr_phase import new_phase, warm_restart
from postmortem.detectors.shared.regimes import change_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View
    from postmortem.detectors.shared.excursions import Excursion

_BRIEF, _CHEAP = 5, 0.25
"""The rows that a reaction of the loss may take, and the share of what was learned that it may give back, to be
harmless."""


@detector
class GradientSpike(BaseDetector):
    """A gradient norm far above its usual level for a few steps.

    What it looks for: one to three spikes of the gradient norm that return to the previous level within a tenth of the
    run.

    Why it matters: one such update can move the weights far from where they had converged. It often precedes a loss
    spike by a few steps and identifies the batch.

    How: residuals of log(gradient norm) from the median of the previous 25 points, in units of their median absolute
    deviation (Hampel identifier, JASA 69, 1974). A spike exceeds `z` units, is at least `ratio` times the previous
    level, and is at least `gap` times as high (in log) as the run's next independent excursion. The level after it must
    be lower by `ratio` as well, so that a norm that grows from almost zero to its normal size is not a spike.

    Severity: info if a logged schedule (a task, a sequence length, a difficulty) changes at the same step, or a log
    message announces a new phase or unfrozen layers there; and for a spike below `large` times the level that the
    training loss does not show, or that costs it a little for a few rows: a clipped gradient changes little.

    Typical causes: a corrupt or very long sample, a rare class, loss terms divided by a small number, a learning rate
    close to the stability limit.

    What to try: replay the step, inspect the batch, clip the gradient norm (the norm before the spike is a good limit).

    Known false positives: norms logged after clipping hide spikes; norms in reinforcement learning and GANs have heavy
    tails, so only a clearly separate spike is reported.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Noise units, ratio to the previous level, gap to the next excursion, fraction of the run that is ignored at
        its start, minimum number of points, longest spike as a fraction of the run, and the ratio from which a spike
        matters even if the loss does not show it."""

        z: float = 5.0
        ratio: float = 3.5
        gap: float = 1.6
        guard: float = 0.04
        points: int = 30
        longest: float = 0.1
        large: float = 10.0

    code = "GRD001"
    name = "gradient-spike"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        grads = [s for s in view.of("grad_norm") if len(s.finite) >= self.options.points]
        if not grads:
            raise NotChecked(f"no gradient norm with {self.options.points} finite points")
        for series in grads:
            if not series.finite.lowest > 0 or series.finite.climb < 0.999 * self.options.ratio:
                continue
            res = residuals(view, series)
            n = len(res.rise)
            start = max(5, int(self.options.guard * n))
            found = excursions(res, self.options.z, math.log(self.options.ratio), start)
            for spike in sorted(outstanding(res, found, self.options.gap, start), key=lambda e: e.first):
                lasting = spike.last - spike.first + 1 > max(5, self.options.longest * n) or spike.last == n - 1
                step = int(res.series.step[spike.first])
                before, peak = math.exp(res.base[spike.first]), float(res.series.value[spike.peak])
                after = median(res.series.value[spike.last + 1 :][:25]) if spike.last + 1 < n else before
                if lasting or peak < self.options.ratio * after or new_phase(view, step) or warm_restart(view, step):
                    continue
                change = change_at(view, res.series, step)
                reaction = _reaction(view, res.series, spike) if peak < self.options.large * before else None
                (last, first), at_peak = res.series.value[spike.first - 1 : spike.first + 1], ""
                if spike.peak > spike.first:
                    at_peak = f" (peak {number(peak)} at step {res.series.step[spike.peak]})"
                yield self.found(
                    res.series,
                    spike.first,
                    f"{series.tag} jumps from {number(last)} at step {res.series.step[spike.first - 1]} to "
                    f"{number(first)} at step {step}{at_peak} and recovers"
                    + (f", as {change}" if change else reaction or ""),
                    severity="info" if change or reaction else None,
                    end=spike.last,
                    evidence={"before": before, "peak": peak, "peak_step": res.series.step[spike.peak], "z": spike.z},
                )


def _reaction(view: View, series: Series, spike: Excursion) -> str | None:
    """In words: what the training loss, logged beside the norm, did in and after the spike, if that was harmless.

    It stayed what it was before; or it rose for a few rows, by a small share of what had been learned, and came back.
    """
    raw = view.main("loss")
    if raw is None:
        return None
    loss = raw.finite
    first, last = (int(np.searchsorted(loss.step, series.step[at])) for at in (spike.first, spike.last))
    before, after = loss.value[max(0, first - 25) : first], loss.value[first : last + 11]
    if len(before) < 10 or len(after) < 5 or len(loss) < 0.5 * len(series):
        return None
    level, spread = median(before), noise(before)
    if median(after) > level + spread:
        return None
    if after.max() <= max(before.max(), level + 3 * spread):
        return "; the loss does not react"
    high = np.flatnonzero(after > level + 3 * spread)
    learned = median(loss.value[:3]) - level
    if high[-1] >= _BRIEF or after.max() - level > _CHEAP * learned or high[-1] + 5 >= len(after):
        return None
    back = loss.step[first + high[-1] + 1]
    return f"; the loss rises to {number(after.max())} and is back at its level by step {back}"
