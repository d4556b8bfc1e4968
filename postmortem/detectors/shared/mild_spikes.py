"""Spikes of a loss that cost nothing, or are none: what makes one a remark."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median, noise
from postmortem.core.training_length import training_length
from postmortem.detectors.shared.excursions import WINDOW

if TYPE_CHECKING:
    from postmortem.core.series import Series
    from postmortem.core.view import View
    from postmortem.detectors.shared.excursions import Excursion, Residuals

_REWARDED = 10
"""Fewer rewards after a spike do not show that the training goes on well."""
_EVALUATED, _RISEN, _LEARNED = 5, 0.1, 0.9
"""Evaluations before and after a jump that show together, and the rise that shows, whether the model got worse; the
share of its first level below which a loss shows a model that has learned."""
_HARDLY = 0.03
"""The share of the first level of a loss that a spike may reach and still be next to nothing."""
_ROUNDED = 10
"""Units of the last printed digit between which rounding makes any ratio: 0.0000 to 0.0006 is no jump."""
_CHEAP, BRIEF = 0.15, 5
"""The share of what was learned that a spike may give back, and the rows it may take, to be no more than a remark."""
_BEGINNING = 0.1
"""The share of the run in which a spike that stays below the first losses and is soon over is a remark."""
_ZEROS = 0.1
"""The share of exact zeros from which on a loss has no noise that a jump can be measured by."""


def reward_holds(view: View, series: Series, spike: Excursion) -> bool:
    """Whether a reward is logged and is no lower at the end than before the spike, which then cost nothing."""
    for reward in (s.finite for s in view.of("reward")):
        before = reward.value[reward.step < series.step[spike.first]][-10:]
        if len(before) >= 3 and len(reward) >= 10:
            end = reward.value[-max(3, len(reward) // 10) :]
            return bool(median(end) >= median(before) - noise(reward.value))
    return False


def reward_grows(view: View, series: Series, spike: Excursion) -> str | None:
    """In words, that a reward has clearly risen since a spike: the error of a value function, which is squared, grows
    with the returns that it predicts, and so does a loss that contains it. None if no reward has."""
    for reward in (s.finite for s in view.of("reward")):
        since = reward.step >= series.step[spike.first]
        before, after = reward.value[~since], reward.value[since]
        if len(before) < 3 or len(after) < _REWARDED:
            continue
        end = median(after[-max(3, len(after) // 10) :])
        if end > before.max() + 2 * noise(reward.value) and np.mean(after > before.max()) > 0.5:
            return f"as {reward.tag} rises from {number(median(before[-10:]))} to {number(end)} since then"
    return None


def held_out_stays(view: View, series: Series, spike: Excursion) -> str | None:
    """In words, that no validation loss has risen since a jump: the model is no worse, so what it is trained on has
    changed, such as the augmentation of the last epochs. None if one has, or if too few tell, or where the loss is
    about as high as at the beginning."""
    at, stayed = series.step[spike.first], None
    alike = (s.finite for s in view.of("loss") if s.rank == series.rank)
    whole = np.sum([s.value for s in alike if np.array_equal(s.step, series.step)], axis=0)  # of parts of one loss
    if not whole.shape or median(whole[spike.first :]) > _LEARNED * median(whole[:3]):
        return None
    for held_out in (s.finite for s in view.of("val_loss")):
        before, after = (held_out.value[rows] for rows in (held_out.step < at, held_out.step >= at))
        if min(len(before), len(after)) < _EVALUATED:
            continue
        level = median(before[-_EVALUATED:])
        if median(after) > level + _RISEN * abs(level):
            return None
        stayed = stayed or f"while {held_out.tag} stays at {number(median(after))}"
    return stayed


def rounded(res: Residuals, spike: Excursion, unit: float) -> bool:
    """Whether the level before and the peak differ by no more than a few units of the last digit that is printed."""
    value = res.series.value
    level, peak = median(value[max(0, spike.first - WINDOW) : spike.first]), float(value[spike.peak])
    return level < _ROUNDED * unit and peak - level < _ROUNDED * unit


def hardly_anything(series: Series, spike: Excursion) -> bool:
    """Whether even the peak is a small share of the first loss: one that is nearly zero scatters by ratio."""
    first = median(series.value[: max(3, len(series) // 50)])
    return bool(series.value[spike.peak] < _HARDLY * first)


def often_zero(series: Series, spike: Excursion) -> bool:
    """Whether many losses before the spike are exactly 0, as of a hinge or triplet loss, or most are one number, as of
    a loss at its floor: any other is a jump then."""
    before = series.value[: spike.first]
    _, count = np.unique(before[-WINDOW:], return_counts=True)
    return bool(np.mean(before == 0) > _ZEROS or count.max(initial=0) > 0.5 * WINDOW)


def cheap(res: Residuals, spike: Excursion) -> bool:
    """Whether a spike is over in a few rows and gives back next to nothing of what was learned before it."""
    value = res.series.value
    first, before = float(value[:3].max()), math.exp(res.base[spike.first])
    brief = spike.last - spike.first < BRIEF
    return brief and before < first and float(value[spike.peak]) - before < _CHEAP * (first - before)


def early(view: View, series: Series, spike: Excursion) -> bool:
    """Whether a spike is over in a few rows of the first tenth of the run, as far as it was to go, and below the first
    losses: the loss falls fast there, and hardly anything was learned yet that could be lost."""
    value, length = series.value, training_length(view)
    begins = spike.first < _BEGINNING * len(value)
    if length is not None and length.unit == "step":
        begins = begins or int(series.step[spike.first]) < _BEGINNING * length.planned
    return begins and spike.last - spike.first < BRIEF and bool(value[spike.peak] < value[:3].max())


def first_after_summary(view: View, series: Series, spike: Excursion) -> bool:
    """Whether an evaluation or the summary of an epoch lies between the spike and the row before: a printed mean often
    starts again there."""
    last, now = series.step[spike.first - 1], series.step[spike.first]
    rare = [s.step for s in view.of("val_loss", "val_accuracy", "loss", "accuracy") if 5 * len(s) <= len(series)]
    return any(bool(((last <= step) & (step <= now)).any()) for step in rare if len(step) > 1)
