"""Learning rate and gradient norm around a step, and settings to try instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, noise, quantile
from postmortem.diagnoses.shared.last_good import stable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series
    from postmortem.core.view import View

_NAMES = ("lr", "learning_rate", "max_lr", "peak_lr", "base_lr")
_ROWS_OF_NOISE = 8
"""Rows of a loss above which its noise is known."""
_BEGINNING = 100
"""Logged rows within which a training that fails may lack a warm-up."""


def value_at(series: Series | None, step: int | None) -> float | None:
    """The last finite value at or before `step`."""
    if series is None or step is None:
        return None
    rows = np.flatnonzero((series.step <= step) & np.isfinite(series.value))
    return float(series.value[rows[-1]]) if len(rows) else None


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate around a step: its highest value in the tenth of the run before, and its first."""

    tag: str
    at: float
    before: float
    jump: float
    """The largest ratio of neighbouring rows in the tenth of the run before the step, without those of a warm-up."""
    calm: float | None
    """The highest rate, up to `before`, at which the loss was at its lowest so far; None if no such rate is known."""

    @property
    def rising(self) -> bool:
        """True if the rate grew by more than 5 % before the step."""
        return self.at > 1.05 * self.before  # a linear warm-up from zero gains 11 % in its last tenth


def rate_at(view: View, step: int | None) -> Rate | None:
    """The learning rate at `step`; None if none is logged before it."""
    raw = view.main("lr")
    if raw is None or step is None:
        return None
    series = raw.finite
    until = int(np.searchsorted(series.step, step, side="right"))
    if until < 2:
        return None
    x = series.value[:until]
    tenth = max(1, (step - int(series.step[0])) // 10)
    first = max(0, min(until - 2, int(np.searchsorted(series.step, step - tenth))))
    recent = x[first:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = recent[1:] / recent[:-1]
    jumps = np.isfinite(ratio) & ~_steady(series.value[: until + 1])[first : until - 1]
    jump = float(np.max(ratio, initial=1.0, where=jumps))
    before = float(recent[0])
    return Rate(series.tag, float(recent.max()), before, jump, _calm(view, series, step, before))


def _steady(value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[n - 1]: whether each change of n values is one of several of about its size, as in a warm-up from zero."""
    change = np.diff(value)
    beside = np.maximum(np.append(change[1:], -np.inf), np.insert(change[:-1], 0, -np.inf))
    return np.asarray((change > 0) & (beside >= 0.5 * change))


def _calm(view: View, rates: Series, onset: int, most: float) -> float | None:
    """The highest rate up to `most` in the rows before `onset` in which the loss had fallen, and not risen again."""
    loss = view.main("loss", "val_loss")
    known = loss.take(loss.step < onset).finite if loss is not None else None
    if known is None or len(known) < 2:
        return None
    level = centred_median(known.value, 5)
    allowed = noise(known.value) if len(known) > _ROWS_OF_NOISE else 0.0
    fell = (level < level[0]) & (level <= np.minimum.accumulate(level) + allowed)
    at = np.searchsorted(rates.step, known.step[fell], side="right") - 1
    found = rates.value[at[at >= 0]]
    return float(found[found <= most].max()) if (found <= most).any() else None


def known_rate(view: View, step: int | None) -> str | None:
    """The learning rate at a step in words, as logged or else as set; None if it is neither."""
    rate = rate_at(view, step)
    if rate is not None:
        return f"{rate.tag} = {number(rate.at, 3)}"
    return next((f"{key} = {number(value, 3)}" for key, value in view.settings(*_NAMES)), None)


def lower_rate(view: View, rate: Rate | None) -> str:
    """The change of the learning rate to try, with the values seen; general advice if it is neither logged nor set."""
    known = next(view.settings(*_NAMES), None)
    if rate is None and known is None:
        return "lower the learning rate to a third of its value, and log it"
    name, high = (rate.tag, rate.at) if rate is not None else known or ("lr", 0.0)
    if known is not None:
        name = known[0]
    low, why = high / 3, "a third of its value at the onset"
    if rate is not None and rate.rising:
        low, why = (
            min(low, rate.before),
            f"{why}; no rate is known at which the loss fell",
        )
        if rate.calm is not None:
            low, why = min(low, rate.calm), f"stable at {number(rate.calm, 3)}, unstable at {number(rate.at, 3)}"
    return f"{name}: {number(high, 3)} → {number(float(f'{low:.0e}'), 3)} ({why})"


def clip(view: View, step: int | None) -> str | None:
    """A limit for the gradient norm, from its level before `step`; None if no gradient norm is logged."""
    grad = view.main("grad_norm")
    if grad is None or step is None:
        return None
    before = grad.value[(grad.step < step) & stable(grad)]
    if len(before) < 5:
        return None
    level = float(f"{quantile(before[-200:], 0.9):.1g}")
    if level <= 0:
        return None
    return f"clip the gradient norm at {number(level, 3)} (its level before the onset; torch.nn.utils.clip_grad_norm_)"


def clip_anyway(view: View) -> str | None:
    """To clip the gradient norm, where the log shows no level of it; None if the configuration says it is clipped."""
    if any(limit > 0 for _, limit in view.settings("max_grad_norm", "grad_clip", "gradient_clip_val", "clip_grad")):
        return None
    return "clip the gradient norm (torch.nn.utils.clip_grad_norm_)"


def warm_up(view: View, onset: int | None) -> str | None:
    """To warm the learning rate up, if the onset is in the first rows of the log; else None."""
    loss = view.main("loss", "val_loss")
    if loss is None or onset is None or int((loss.step < onset).sum()) >= _BEGINNING:
        return None
    return "warm the learning rate up over the first steps"
