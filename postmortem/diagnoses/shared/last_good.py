"""The last good step and checkpoint of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.checkpoints.last_good import last_good
from postmortem.core.distinct import distinct, without
from postmortem.core.stats import SIGMA, median, trailing_median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Checkpoint
    from postmortem.core.series import Series
    from postmortem.core.view import View

_WINDOW = 25
_ZEROS = 0.1
"""The share of exact zeros from which on a series has no level."""


def stable(series: Series) -> NDArray[np.bool_]:
    """True where a point is finite and stable: less than five deviations above the median of the 25 points before, or
    less than twice that median. Of a series that is often exactly 0, as a hinge loss, up to twice the largest of these
    points: it has no level."""
    rows = np.flatnonzero(np.isfinite(series.value))
    x = series.value[rows]
    with np.errstate(over="ignore", invalid="ignore"):
        base = trailing_median(x)
        off = x - base
        scale = SIGMA * trailing_median(np.abs(off))
        quiet = (off <= 5 * scale) | (off <= np.abs(base))
        if len(x) and np.mean(x == 0) > _ZEROS:
            odd = np.flatnonzero(~quiet)
            quiet[odd] = [x[i] <= 2 * x[max(0, i - _WINDOW) : i].max(initial=0.0) for i in odd.tolist()]
    found = np.zeros(len(series), bool)
    found[rows[quiet]] = True
    return found


def watched(view: View) -> list[Series]:
    """The loss and the gradient norm; where neither is logged, another metric of the training."""
    main = [s for s in (view.main("loss"), view.main("grad_norm")) if s is not None and np.isfinite(s.value).any()]
    return (
        main
        or [s for s in view.series if s.role in ("val_loss", "perplexity")]
        or [s for s in view.series if s.role not in (None, "epoch")][:1]
    )


def last_good_step(view: View, onset: int | None) -> int | None:
    """The last logged step before `onset` with loss and gradient norm finite and stable; None if there is none."""
    series = watched(view)
    if not series:
        return None
    bad = distinct(np.concatenate([s.step[~stable(s)] for s in series]))
    steps = without(series[0].step, bad)
    if onset is not None:
        steps = steps[steps < onset]
    return int(steps[-1]) if len(steps) else None


def stable_before(view: View, step: int | None, points: int = 10) -> bool:
    """Whether loss and gradient norm were finite and stable in the last `points` rows before `step`, without a rise."""
    if step is None:
        return False
    for series in watched(view):
        until = int(np.searchsorted(series.step, step))
        recent = series.value[max(0, until - points) : until]
        if len(recent) < 3 or not stable(series)[max(0, until - points) : until].all():
            return False
        half = len(recent) // 2
        first, last = median(recent[:half]), median(recent[half:])
        if np.mean(recent == 0) > _ZEROS:
            first, last = float(recent[:half].max()), float(recent[half:].max())
        if last > 1.5 * abs(first) + 1e-12:
            return False
    return bool(watched(view))


def last_good_checkpoint(view: View, good: int | None, onset: int | None = None) -> Checkpoint | None:
    """The newest checkpoint at or before `good` that is not known to hold non-finite values.

    With `onset`, also a checkpoint from between the two that was inspected and is finite: a log of every tenth step
    does not show when in between a value became non-finite, but the weights do. A checkpoint of the very step at
    which the log continues after a restart was saved before that step: it holds the last step logged before.
    """
    if good is None:
        return None
    until = good if onset is None else onset - 1
    steps = {c.step for c in view.checkpoints}
    went_on = {r.after for r in view.restarts if r.after - 1 not in steps}
    logged = distinct(np.concatenate([s.step for s in watched(view)] or [np.zeros(0, np.int64)]))

    def in_time(c: Checkpoint) -> bool:
        if c.step is None:
            return False
        done = c.step
        if c.step in went_on:
            before = int(np.searchsorted(logged, c.step)) - 1
            done = min(c.step - 1, int(logged[before])) if before >= 0 else c.step - 1
        return done <= good or (done <= until and c.finite is True)

    return last_good(view.checkpoints, in_time)


def logged_between(view: View, good: int | None, onset: int) -> bool:
    """Whether the log has steps between the last good one and the onset: then the run degraded before the onset."""
    return good is not None and any(bool(((s.step > good) & (s.step < onset)).any()) for s in watched(view))
