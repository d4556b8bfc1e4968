"""Phases of the training that the learning rate shows: a new phase, a warm restart, a rate of zero to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.stats import median, noise
from postmortem.core.training_length import training_length
from postmortem.detectors.shared.frozen import decimals

if TYPE_CHECKING:
    from postmortem.core.series import Series
    from postmortem.core.view import View

_BEGINNING = 0.2
"""The share of a training in which a warm-up may last."""
_STAIR = 3
"""Rows of a level of a staircase."""
_DECIMALS = 4
"""Decimals from which a text of fixed decimals is likely: `0.001` and `0.0` are rather numbers as Python shows them."""
_UNITS = 4.5
"""Units of the last decimal of which a tenth is printed as zero."""
_FALL = 6
"""Rows between half of the peak and zero by which the shape of a decay is known."""


def new_phase(view: View, step: int, ratio: float = 1.5) -> bool:
    """True if the learning rate was changed within three rows of `step` and the loss did not get worse.

    Gradient norms of two phases have different levels, by more parameters or another loss. That is no explosion.
    """
    raw = view.main("lr")
    if raw is None:
        return False
    rate = raw.finite
    at = int(np.searchsorted(rate.step, step))
    x = rate.value[max(0, at - 4) : at + 4]
    if len(x) < 2 or x.min() <= 0 or float(np.abs(np.diff(np.log(x))).max()) < np.log(ratio):
        return False
    return no_worse(view, step)


def no_worse(view: View, step: int, slack: float = 0.0) -> bool:
    """Whether the training loss in the second half of the rows from `step` on is at most what it was just before.

    `slack` allows a rise by so many times its noise.
    """
    train = view.main("loss")
    if train is None:
        return False
    loss = train.finite
    before, after = loss.value[loss.step < step], loss.value[loss.step >= step]
    if len(before) <= 2 or len(after) <= 4:
        return False
    most = median(before[-10:]) + (slack * noise(loss.value) if slack else 0.0)
    return bool(median(after[-len(after) // 2 :]) <= most)


def still_warms_up(view: View) -> bool:
    """Whether the learning rate rises from the first row to the last, and little of what was planned was done.

    A loss that has not fallen by then says nothing: it is still where it began, as the log 2 of a preference loss.
    """
    raw, length = view.main("lr"), training_length(view)
    if raw is None or length is None or length.done > _BEGINNING * length.planned:
        return False
    rate = raw.finite.value
    return len(rate) > 2 and bool((np.diff(rate) >= 0).all() and rate[-1] > 2 * rate[0])


def warm_restart(view: View, step: int, ratio: float = 1.8) -> bool:
    """True if the learning rate restarts within three rows of `step`, and at least twice in the run."""
    raw = view.main("lr")
    if raw is None:
        return False
    rate = raw.finite
    rises = np.flatnonzero(rate.value[1:] > ratio * np.maximum(rate.value[:-1], 1e-3 * rate.value.max(initial=0.0))) + 1
    rises = rises[rises > 3]  # the warm-up
    rises = rises[np.diff(rises, prepend=-9) > 1]
    at = int(np.searchsorted(rate.step, step))
    return len(rises) > 1 and bool((np.abs(rises - at) <= 3).any())


def dead_from(series: Series, share: float = 1e-5) -> int | None:
    """The first point from which the learning rate stays below `share` of its peak to the end, or None.

    A rate that the log prints as zero may be above that: then nothing is known of it.
    """
    x = series.value
    if not len(x) or not (peak := float(x.max(initial=0.0))) > 0:
        return 0 if len(x) and not x.any() else None
    if x[-1] > share * peak:
        return None
    alive = np.flatnonzero(x > share * peak)
    at = int(alive[-1]) + 1
    return at if at < len(x) and not _may_be_rounded(series, at) else None


def _may_be_rounded(series: Series, at: int) -> bool:
    """Whether the zeros from `at` on may be printed for a rate above zero, with too few decimals.

    So it is if the next level of a staircase, at the same ratio, is below half a unit of the last decimal that any row
    shows; and if a text shows no more than four such units before the zeros, of a level that lasted (a tenth of it is
    no longer visible) or of a rate that fell by the same factor again and again. One that fell along a straight line or
    a cosine is zero where these end.
    """
    x = series.value
    zeros = np.flatnonzero(x[at:] == 0)
    if not len(zeros) or x[at + zeros[0] :].any():
        return False
    at += int(zeros[0])
    shown = decimals(x)
    unit = 10.0**-shown
    starts = np.flatnonzero(np.diff(x[:at], prepend=np.nan) != 0)
    lengths, levels = np.diff(np.append(starts, at)), x[starts]
    stairs = len(levels) > 1 and lengths[-2:].min() >= _STAIR and 0 < levels[-1] < levels[-2]
    if stairs and levels[-1] ** 2 / levels[-2] < 0.5 * unit:
        return True
    if series.source != "text" or shown < _DECIMALS or levels[-1] > _UNITS * unit:
        return False
    if x.max() <= _UNITS * unit and (x[:at] == 0).any():
        return True  # its zeros come and go: the text shows one digit of it
    if lengths[-1] >= _STAIR and (len(levels) < 2 or levels[-1] < 0.5 * levels[-2] or not levels[-2]):
        return True
    half = int(np.flatnonzero(x[:at] >= 0.5 * x.max())[-1])
    return at - half > _FALL and bool(x[(half + at) // 2] < 0.2 * x[half])
