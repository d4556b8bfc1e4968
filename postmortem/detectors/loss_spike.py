from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector, number
from postmortem.detectors.shared.excursions import excursions, outstanding, residuals
from postmortem.detectors.shared.losses import judged_losses, totals
from postmortem.detectors.shared.lr_phase import warm_restart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class LossSpike(BaseDetector):
    """A sudden rise of the training loss that stands out from the run's own noise.

    What it looks for: one to three jumps of the loss above the level of the points before.

    Why it matters: a spike is a bad batch or an update that was too large. Where the loss does not come back the
    weights are damaged (error); where it does, time was lost and the next spike may not recover (warning).

    How: residuals of log(loss) to the median of the 25 points before, in units of their median absolute
    deviation (Hampel's identifier, JASA 69, 1974), taken from neighbouring points. A spike is above `z` of them, at least `ratio` times the
    level before, and at least `gap` times as high (in log) as the run's next independent excursion: on
    heavy-tailed noise only the gap tells. The first part of the run (`guard`) is left out.

    Typical causes: a corrupt or unusual batch, a learning rate near the edge of stability, Adam's second moment
    lagging behind (beta2 too high), no gradient clipping, wrong labels in one shard.

    What to try: replay the step and look at the batch; clip the gradient norm; lower the learning rate or beta2;
    skip the batches around the step and resume from a checkpoint before it (as done for PaLM).

    Known false positives: a curriculum or a new data set that begins, a single restart of the learning rate (where
    the schedule restarts several times, rises of the loss at a restart are left out).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Noise units and ratio to the level before, and both again (a small jump must be surer, an unsure one larger);
        gap to the next excursion; share of the run left out at its start; least points; the ratio that competing losses
        (GANs, reinforcement learning) need, and that of a validation loss."""

        z: float = 4.0
        ratio: float = 1.35
        sure: float = 6.0
        large: float = 1.6
        gap: float = 1.6
        guard: float = 0.04
        points: int = 30
        contest: float = 2.5
        held_out: float = 3.0

    code = "LOS001"
    name = "loss-spike"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses, contest = judged_losses(view, self.options.points)
        if not losses:
            raise NotChecked(f"no training loss with {self.options.points} finite points")
        for series in losses:
            yield from self._spikes(view, series, self.options.contest if contest else self.options.ratio, contest)
        for series in totals(view, "val_loss", self.options.points):
            yield from self._spikes(view, series, self.options.held_out)

    def _spikes(self, view: View, series: Series, ratio: float, contest: bool = False) -> Iterator[Finding]:
        res = residuals(view, series)
        n = len(res.rise)
        start = max(5, int(self.options.guard * n))
        found = excursions(res, self.options.z, math.log(ratio) if res.log else 0.0, start)
        found = [e for e in found if e.z > self.options.sure or (res.log and e.rise > math.log(self.options.large))]
        if contest and not res.log:  # a critic's loss swings about zero: there is no ratio to the level, but one to all that was before
            so_far = np.maximum.accumulate(np.abs(res.series.value))
            found = [e for e in found if res.series.value[e.peak] > ratio * so_far[e.first - 1]]
        for spike in sorted(outstanding(res, found, self.options.gap, start, sure=self.options.sure), key=lambda e: e.first):
            if warm_restart(view, int(res.series.step[spike.first])):
                continue
            level, peak = res.base[spike.first], res.series.value[spike.peak]
            before = math.exp(level) if res.log else float(np.median(res.series.value[max(0, spike.first - 25) : spike.first]))
            back = np.flatnonzero(res.series.value[spike.last + 1 :] <= before + 0.25 * (peak - before))
            lately = float(np.median(res.series.value[max(0, spike.first - 5) : spike.first]))  # a loss that fell fast was below the median
            recovered = (
                len(back) > 0
                and self._calm_after(res.series, spike.last, before, peak)
                and not (res.log and self._stays_up(res.series, spike.last, min(before, lately)))
            )
            last = spike.last >= n - 2
            step = res.series.step
            how = (
                f"and is back by step {step[spike.last + 1 + back[0]]}" if recovered else "at the end of the log" if last else "and does not recover"
            )
            yield self.found(
                res.series,
                spike.first,
                f"{series.tag} jumps from {number(before)} to {number(peak)} ({number(spike.z)} times its noise) at step {step[spike.first]} {how}",
                severity="warning" if recovered or last or series.role == "val_loss" else "error",
                end=spike.last,
                evidence={"before": before, "peak": peak, "peak_step": res.series.step[spike.peak], "z": spike.z, "recovered": recovered},
            )

    @staticmethod
    def _calm_after(series: Series, last: int, before: float, peak: float) -> bool:
        """Whether what follows the spike lies nearer to the level before than to the peak."""
        after = series.value[last + 1 : last + 1 + max(10, len(series) // 20)]
        return bool(np.median(after) < before + 0.25 * (peak - before)) if len(after) else False

    @staticmethod
    def _stays_up(series: Series, last: int, before: float) -> bool:
        """Whether no ten points after the spike come down to twice the level before, where there are 25 or more: a peak may be so high
        that what was lost for good looks small beside it."""
        after = series.value[last + 1 :]
        if len(after) < 25:
            return False
        lowest = np.median(np.lib.stride_tricks.sliding_window_view(after, 10), axis=-1).min()
        return bool(lowest > 2 * before)
