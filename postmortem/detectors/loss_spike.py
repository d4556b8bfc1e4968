from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, row_medians, sigma
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.chance import excuses
from postmortem.detectors.shared.excursions import WINDOW, Excursion, excursions, outstanding, residuals, returning
from postmortem.detectors.shared.frozen import decimals
from postmortem.detectors.shared.losses import judged_losses, of_a_guessing_discriminator, totals
from postmortem.detectors.shared.lr_phase import warm_restart
from postmortem.detectors.shared.mild_spikes import (
    BRIEF,
    cheap,
    early,
    first_after_summary,
    hardly_anything,
    held_out_stays,
    often_zero,
    reward_grows,
    reward_holds,
    rounded,
)
from postmortem.detectors.shared.regimes import change_at, change_behind, far_above_start, period_of, valley

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View
    from postmortem.detectors.shared.excursions import Residuals
    from postmortem.detectors.shared.regimes import Change


_LEAST = math.log(1.1)
_AROUND, _SAME_WAY, _FAR_ABOVE = 6, 0.7, 3.0
"""Rows beside a jump whose steps it is to be larger than; the share of them that go the same way as the one before in a
smooth curve, where noise has a third; the ratio to the usual one of them from which on a step is a jump."""
_OF_A_MEAN = 4.0
"""The ratio to the level that the first row of a mean that starts again may reach."""
_FEW_ROWS = 16
"""Rows that are looked at one by one."""
_SURELY = 1 - 1e-9
"""Where a bound is to hold although logarithms are rounded."""
_STAYS = 8
"""Ratio to the previous level, and points above half of what was learned, of a jump that gives it back."""


@detector
class LossSpike(BaseDetector):
    """A sudden rise of the training loss, well above the run's own noise.

    What it looks for: one to three jumps of the loss above the level of the previous points.

    Why it matters: a spike is caused by a bad batch or an update that was too large. If the loss does not recover, the
    weights are damaged (error). If it does, time was lost, and the loss may not recover from the next spike (warning).

    How: residuals of log(loss) from the median of the previous 25 points, in units of their median absolute deviation
    (Hampel identifier, JASA 69, 1974), taken from neighbouring points. A spike exceeds `z` units, is at least `ratio`
    times the previous level, and is at least `gap` times as high (in log) as the run's next independent excursion: with
    heavy-tailed noise only the gap distinguishes a spike. Without one, a jump that gives back half of what was learned,
    for 8 points at least, is enough; so is one after which the loss stays there to the end of the log, however noisy it
    was. A loss that is zero but for its last printed digit does not jump, nor one that goes up in a smooth curve. If
    more than six jumps to a hundredfold stand out and return at once, the first is reported with the number of the
    others. The first part of the run (`guard`) is ignored.

    Typical causes: a corrupt or unusual batch, a learning rate close to the stability limit, a second moment of Adam
    that adapts too slowly (beta2 too high), no gradient clipping, wrong labels in one shard.

    What to try: replay the step and inspect the batch; clip the gradient norm; lower the learning rate or beta2; skip
    the batches around the step and resume from a checkpoint before it (as done for PaLM).

    Severity: info for a spike that recovers, if it is one of a validation loss, or did not cost any reward, or its peak
    is a few hundredths of the first level of the loss (a loss near zero scatters by ratio), or it gives back less than
    15 % of what had been learned and is over in a few rows, or it is over in a few rows of the first tenth of the run
    and stays below the first losses, or it is small (`large`) or one row below four times the level, and the first
    after an evaluation or after the summary of an epoch, where a printed mean often starts again, or more than a tenth
    of the losses before it are exactly 0, as of a triplet or hinge loss, or most are one number, as of a loss at its
    floor. Info as well if a schedule that
    is logged (a task, a sequence length, a difficulty) changes at the same step, if the spike is the start of a rise
    that a slow change of one explains (the weight of a loss term), or if the log announces a new phase there in words
    (not if unfrozen layers or the end of a warm-up cost half of what was learned), or if a reward has clearly risen
    since the spike (the error of a value function grows with the returns that it predicts), or if the loss stays up but
    no validation loss has risen since (what it is trained on has changed, as where YOLO ends an augmentation), or if
    three and more jumps
    lie at the multiples of one number of steps and recover (a program that resets something every 3000 steps), unless
    the peak is above ten times the first level of the loss, or a classifier guesses from then on.

    Known false positives: the start of a new data set or curriculum stage that is not logged; a single restart of the
    learning rate (if the schedule restarts several times, rises of the loss at a restart are ignored).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Noise units and ratio to the previous level, then the stricter values of both (a small jump needs more noise
        units, a jump of few noise units a larger ratio); gap to the next excursion; fraction of the run that is ignored
        at its start; minimum number of points, and of evaluations (with fewer than `points`, only spikes that recover);
        the ratio required for competing losses (GANs, reinforcement learning), and for a validation loss."""

        z: float = 4.0
        ratio: float = 1.35
        sure: float = 6.0
        large: float = 2.2
        gap: float = 1.6
        guard: float = 0.04
        points: int = 30
        evaluations: int = 12
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
        for series in totals(view, "val_loss", self.options.evaluations):
            spikes = list(self._spikes(view, series, self.options.held_out))
            few = (
                len(series) < self.options.points
            )  # too few to tell a spike that lasts from a rise: only one that ends
            yield from (f for f in spikes if f.evidence["recovered"] or not few)

    def _spikes(self, view: View, series: Series, ratio: float, contest: bool = False) -> Iterator[Finding]:
        if _cannot_jump(series.finite, ratio):
            return
        res = residuals(view, series)
        start = max(5, int(self.options.guard * len(res.rise)))
        found = excursions(res, self.options.z, math.log(ratio) if res.log else 0.0, start)
        if res.log and not found:
            found = [e for e in excursions(res, self.options.sure, _LEAST, start) if _lost_half(res, e)]
        found = [e for e in found if e.z > self.options.sure or (res.log and e.rise > math.log(self.options.large))]
        unit = 10.0 ** -decimals(res.series.value) if found else 1.0
        found = [e for e in found if not rounded(res, e, unit)]
        if contest and not res.log:
            # a critic's loss swings about zero: its ratio is taken to all values before, not to the level
            so_far = np.maximum.accumulate(np.abs(res.series.value))
            found = [e for e in found if res.series.value[e.peak] > ratio * so_far[e.first - 1]]
        if contest:
            peaks = res.series.value
            found = [e for e in found if not of_a_guessing_discriminator(view, series, float(peaks[e.peak]))]
        standing = outstanding(res, found, self.options.gap, start, sure=self.options.sure)
        more = [] if standing or contest else self._returning(res, found, start)
        standing = standing or more[:1]
        lost = None if contest or any(e.last >= len(res.rise) - 2 for e in standing) else _lost_for_good(res, start)
        if lost is not None and all(abs(e.first - lost.first) > BRIEF for e in standing):
            standing.append(lost)
        period = period_of(res.series, [spike.first for spike in standing])
        for spike in sorted(standing, key=lambda e: e.first):
            at = int(res.series.step[spike.first])
            if not (warm_restart(view, at) or _climbs(res, spike) or _smooth_hill(res, spike)):
                change = change_at(view, res.series, int(res.series.step[spike.first]))
                change = change or (self._slow_change(view, res, spike) if res.log else None)
                high = far_above_start(res.series, float(res.series.value[spike.peak]))
                high = high or not excuses(view, int(res.series.step[spike.first]))
                small = res.log and spike.rise < math.log(self.options.large)
                mild = (
                    reward_holds(view, res.series, spike)
                    or (res.log and (hardly_anything(res.series, spike) or cheap(res, spike)))
                    or often_zero(res.series, spike)
                    or early(view, res.series, spike)
                    or ((small or _one_row(res, spike)) and first_after_summary(view, res.series, spike))
                )
                logged = [s for s in view.series if (s.tag, s.rank) == (series.tag, series.rank)]
                raw = max(logged, key=lambda s: int(s.step[-1]))
                jump = self._spike(res, spike, None if high else change, None if high else period, mild, raw)
                if grown := reward_grows(view, res.series, spike):
                    jump = replace(jump, severity="info", message=f"{jump.message}, {grown}")
                elif jump.severity == "error" and (stays := held_out_stays(view, res.series, spike)):
                    jump = replace(jump, severity="info", message=f"{jump.message}, {stays}")
                yield _with_more(jump, res.series, more) if more else jump

    def _returning(self, res: Residuals, found: list[Excursion], start: int) -> list[Excursion]:
        """The first first; only where each is far above the first losses of the training."""
        every = sorted(returning(res, found, self.options.gap, start), key=lambda e: e.first)
        return every if all(far_above_start(res.series, float(res.series.value[e.peak])) for e in every) else []

    def _spike(
        self, res: Residuals, spike: Excursion, change: Change | None, period: int | None, harmless: bool, raw: Series
    ) -> Finding:
        series = res.series
        value, step, peak = series.value, series.step, series.value[spike.peak]
        before = median(value[max(0, spike.first - 25) : spike.first])
        if res.log:
            before = math.exp(res.base[spike.first])
        # below the median if the loss fell fast
        lately = median(value[max(0, spike.first - 5) : spike.first])
        back = np.flatnonzero(value[spike.last + 1 :] <= before + 0.25 * (peak - before))
        recovered = (
            len(back) > 0
            and self._calm_after(series, spike.last, before, peak)
            and not (res.log and self._stays_up(series, spike.last, min(before, lately)))
        )
        at_end = spike.last >= len(value) - 2 and len(value) - spike.first <= max(_STAYS, len(value) // 20)
        usual = min(before, lately) + sigma(value[max(0, spike.first - WINDOW) : spike.first])
        late = None if recovered else self._late_return(value[spike.last + 1 :], usual)
        how = "and does not recover"
        if late is not None:
            how = f"and is back at its level only at step {step[spike.last + 1 + late]}"
        if at_end:
            how = "at the end of the log" if raw.step[-1] == step[-1] else f"and is non-finite after step {step[-1]}"
        if recovered:
            how = f"and has recovered by step {step[spike.last + 1 + back[0]]}"
        top = spike.first + int(np.argmax(value[spike.first : spike.last + 1 if recovered else None]))
        at_peak = f" (peak {number(value[top])} at step {step[top]})" if top > spike.first else ""
        mild = recovered or at_end or late is not None or series.role == "val_loss"
        if change and not recovered:
            first, after = median(value[: max(3, len(value) // 50)]), median(value[spike.first :])
            change = change if change.allows(first, before, after) else None
        harmless = harmless or series.role == "val_loss"
        reason = f", as {change}" if change else ""
        if (recovered or at_end) and period is not None and not change:
            reason = (
                f", as at other multiples of {period} steps: the program likely does something every {period} steps"
            )
        return self.found(
            series,
            spike.first,
            f"{_jumps(raw, series, spike.first)}{at_peak}, {number(spike.z)} times its noise, {how}{reason}",
            severity="info" if reason or (recovered and harmless) else "warning" if mild else "error",
            end=spike.last,
            evidence={
                "before": before,
                "peak": value[top],
                "peak_step": step[top],
                "z": spike.z,
                "recovered": recovered,
            },
        )

    @staticmethod
    def _slow_change(view: View, res: Residuals, spike: Excursion) -> Change | None:
        """The slow change of a schedule that explains a lasting rise of the loss, of which the spike is the start."""
        smooth, _, best = valley(np.log(res.series.value))
        change = change_behind(view, res.series, smooth, best, spike.first) if best < spike.first else None
        return change if change and not change.jump else None

    @staticmethod
    def _calm_after(series: Series, last: int, before: float, peak: float) -> bool:
        """True if the values after the spike lie nearer to the level before than to the peak."""
        after = series.value[last + 1 : last + 1 + max(10, len(series) // 20)]
        return bool(median(after) < before + 0.25 * (peak - before)) if len(after) else False

    @staticmethod
    def _late_return(after: NDArray[np.float64], before: float) -> int | None:
        """The first of several points after the spike that lie at the level before; None if the values end above it."""
        n = max(_STAYS, len(after) // 5)
        if len(after) < 2 * n or median(after[-n:]) > before:
            return None
        low = row_medians(np.lib.stride_tricks.sliding_window_view(after, _STAYS)) <= before
        return int(np.argmax(low)) if low.any() else None

    @staticmethod
    def _stays_up(series: Series, last: int, before: float) -> bool:
        """True if no ten of at least 25 points after the spike come down to twice the level before.

        A peak may be so high that a lasting loss in quality looks small compared with it.
        """
        after = series.value[last + 1 :]
        if len(after) < 25:
            return False
        lowest = row_medians(np.lib.stride_tricks.sliding_window_view(after, 10)).min()
        return bool(lowest > 2 * before)


def _cannot_jump(series: Series, ratio: float) -> bool:
    """Whether no value is `ratio` times as high as one before it, nor lies above half of what was learned for long:
    then there is no spike, whatever the noise is."""
    x = series.value
    if not series.climb <= ratio * _SURELY:
        return False
    if series.climb <= math.exp(_LEAST) * _SURELY:
        return True
    # as `_lost_half`, with the lowest value so far for the level before, which is no lower
    half = 0.5 * (np.minimum.accumulate(x) + median(x[:3])) * _SURELY
    stays = np.minimum(x[:-1], x[1:])  # the lowest of 2, of 4, of 8 values from here on
    for apart in (2, 4):
        stays = np.minimum(stays[:-apart], stays[apart:])
    return not bool((stays[1:] > half[: max(len(stays) - 1, 0)]).any())


def _one_row(res: Residuals, spike: Excursion) -> bool:
    """Whether a spike is one row of a few times the level, as a mean that starts again may print."""
    return res.log and spike.last == spike.first and spike.rise < math.log(_OF_A_MEAN)


def _jumps(raw: Series, series: Series, at: int) -> str:
    """The jump at finite point `at` in words, and whether points of `raw` before it are not finite."""
    value, step = series.value, series.step
    went = f"jumps from {number(value[at - 1])} at step {step[at - 1]} to {number(value[at])} at step {step[at]}"
    gap = raw.value[(raw.step > step[at - 1]) & (raw.step < step[at])]
    return f"{series.tag} {went}" + ("" if np.isfinite(gap).all() else ", over non-finite values in between")


def _with_more(jump: Finding, series: Series, every: list[Excursion]) -> Finding:
    """The first of the jumps that return, with the others."""
    steps = [int(series.step[e.peak]) for e in every]
    message = f"{jump.message}; {len(steps) - 1} more such jumps up to step {steps[-1]}"
    return replace(jump, message=message, evidence={**jump.evidence, "steps": steps})


def _lost_half(res: Residuals, spike: Excursion) -> bool:
    """Whether more than half of what was learned is lost for good: a loss of 3.5 nats that jumps to 4.5 has a small
    ratio, but 4.5 may be where an untrained model begins."""
    value = res.series.value
    first, before = median(value[:3]), math.exp(res.base[spike.first])
    half = before + 0.5 * (first - before)
    after = value[spike.first : spike.first + _STAYS]
    return before < first and len(after) >= _STAYS and float(after.min()) > half


def _lost_for_good(res: Residuals, start: int) -> Excursion | None:
    """A jump from one row to the next after which the loss stays, to the end of the log, where less than half of what
    was learned is left.

    That many rows prove it, also where the noise of a small loss is as large as the jump.
    """
    value = res.series.value
    if not res.log or len(value) < start + 2 * _STAYS:
        return None
    lowest = np.minimum.accumulate(value[::-1])[::-1]
    # of a million rows few lie below all that follow, and hardly any far below: only these are looked at one by one
    at = np.arange(start + _STAYS, len(value) - _STAYS + 1)
    at = at[lowest[at] > value[at - 1]]
    for here in at[lowest[at] > 2 * _lowest_before(value, at)].tolist():
        before = value[max(0, here - WINDOW) : here]
        level, first = median(before), median(value[:3])
        half = level + 0.5 * (first - level)
        if lowest[here] > max(half, 2 * level) and before.max() < half:
            peak = here + int(np.argmax(res.rise[here:]))
            return Excursion(here, peak, len(value) - 1, float(res.rise[peak]), float(res.z[peak]))
    return None


def _lowest_before(value: NDArray[np.float64], at: NDArray[np.intp]) -> NDArray[np.float64]:
    """The lowest of the `WINDOW` values before each of these rows."""
    if len(at) <= _FEW_ROWS:
        return np.array([value[max(0, row - WINDOW) : row].min() for row in at.tolist()])
    lowest = value[at - 1]
    for back in range(2, WINDOW + 1):
        np.minimum(lowest, value[np.maximum(at - back, 0)], out=lowest)
    return lowest


def _climbs(res: Residuals, spike: Excursion) -> bool:
    """True if the excursion is no jump, but a climb or the start of one, which divergence reports if it lasts.

    No three rows make half of the rise to the peak, or the loss stays above the peak afterwards and rises at least as
    far again.
    """
    if not res.log:
        return False
    way = np.log(res.series.value[max(0, spike.first - 3) : spike.peak + 1])
    # a climb at the end of the log may be too short for divergence
    comes_back = spike.last < len(res.rise) - 2 or spike.last - spike.first >= WINDOW
    if comes_back and len(way) > 6 and float((way[3:] - way[:-3]).max()) < 0.5 * spike.rise:
        return True
    after = np.log(res.series.value[spike.last + 1 :])
    base = float(res.base[spike.first])
    return len(after) >= 15 and median(after) - base > 2 * spike.rise


def _smooth_hill(res: Residuals, spike: Excursion) -> bool:
    """Whether the loss goes up smoothly, as that of a generator does: no step is far above its neighbours, and most go
    the same way as the one before. The noise of such a curve is next to nothing, and any hill many times as high."""
    value = np.log(res.series.value) if res.log else res.series.value
    around = value[max(0, spike.first - _AROUND) : min(spike.peak, spike.first + _AROUND) + _AROUND + 1]
    step = np.diff(around)
    if spike.last >= len(value) - 2:  # it does not come down again
        return False
    if len(step) < _AROUND or not np.mean(step[1:] * step[:-1] > 0) >= _SAME_WAY:
        return False
    size = np.abs(step)
    return bool(size.max() <= _FAR_ABOVE * median(size))
