"""Seconds per step from the log: step time, throughput, or the times of the rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.stats import median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series
    from postmortem.core.view import View


@dataclass(frozen=True, slots=True)
class Timing:
    """Cost of a step at the points of `series`, in any unit, larger is slower; `how` says where it is from."""

    series: Series
    cost: NDArray[np.float64]
    how: str

    def seconds(self) -> NDArray[np.float64] | None:
        """float64[n]: the cost in seconds per step; None for a throughput, whose unit is not time.

        A step time without a unit in its name is taken as seconds.
        """
        if self.how == "throughput":
            return None
        return self.cost / (per_second(self.series) if self.how == "step time" else 1.0)


NOTHING = 0.005
"""Seconds per step below which a slowdown is nothing: a busy machine while a log of tiny steps was written."""
_EPISODES = later(r"(?:^|[/_. ])(?:ep|episode|eps)[_ ]?(?:len|length|steps)", re.IGNORECASE)
"""The length of episodes, by its name."""
_MILLISECONDS = later(r"(?:^|[\W_])(?:ms|msec|millis\w*)(?:$|[\W_])", re.IGNORECASE)


def per_second(series: Series) -> float:
    """The units of a series of times in a second, by its name: 1000 where that says milliseconds, else 1."""
    return 1000.0 if _MILLISECONDS.search(series.tag) else 1.0


def first_slow(cost: NDArray[np.float64], split: int, reach: int = 3) -> int:
    """The first slow point near a split that was found in a smoothed cost, which may be some points off.

    Slow is what lies nearer to the level after the split than to that before, by ratio; so does what follows.
    """
    first, end = max(1, split - reach), min(split + reach, len(cost) - 1)
    middle = np.sqrt(max(median(cost[:first]), 1e-300) * max(median(cost[end:]), 1e-300))
    slow = cost > middle
    lasting = (at for at in range(first, end + 1) if slow[at] and slow[at : at + 2 * reach].mean() >= 0.75)
    return next(lasting, split)


def negligible(timing: Timing, slow: NDArray[np.bool_] | slice, usual: slice) -> bool:
    """Whether the slow points take less than NOTHING seconds more per step than the usual ones; False if unknown."""
    cost = timing.seconds()
    return cost is not None and median(cost[slow]) - median(cost[usual]) < NOTHING


def interrupted(view: View, series: Series) -> NDArray[np.bool_]:
    """True at rows in whose time an evaluation or a checkpoint falls, at the step before or one of their own.

    None where that is true of half of the rows: an evaluation in every row explains no single slow one.
    """
    held_out = [s.step for s in view.of("val_loss", "val_accuracy")]
    saved = [np.array([c.step for c in view.checkpoints if c.step is not None], np.int64)]
    steps = distinct(np.concatenate([*held_out, *saved]))
    before = np.concatenate([series.step[:1] - 1, series.step[:-1]])
    found = np.searchsorted(steps, series.step, side="right") > np.searchsorted(steps, before, side="left")
    return found if found.mean() < 0.5 else np.zeros(len(series), bool)


def opens(view: View, series: Series) -> NDArray[np.bool_]:
    """True at the first row, at that of each epoch, and after each restart: workers start there and fill their queues.

    None where that is true of half of the rows.
    """
    starts = [r.after for r in view.restarts]
    for reading in view.run.readings:
        starts += [end + 1 for end in reading.facts.get("epoch_ends", {}).values()]
    if (epoch := view.main("epoch")) is not None:
        whole = np.floor(epoch.finite.value)
        starts += epoch.finite.step[1:][np.diff(whole) > 0].tolist()
    rows = np.searchsorted(series.step, np.array(starts, np.int64), side="left")
    rows = np.append(rows[rows < len(series)], 0)
    found = np.isin(series.step, series.step[rows])  # a step may be logged before and after a restart
    return found if found.mean() < 0.5 else np.zeros(len(series), bool)


def longer_episodes(view: View, timing: Timing, shift: float) -> str:
    """In words, what says that rows take longer as their episodes do; "" if nothing says it.

    `shift` is the logarithm of how many times longer rows take. A reward or a length of episodes explains it if it
    rises with the time, by half of that at least, and moves with it from row to row too: what only rises meanwhile, as
    rewards do, explains nothing.
    """
    step, x = timing.series.step, np.log(np.maximum(timing.cost, 1e-300))
    for series in view.series:
        if series.role != "reward" and not _EPISODES.search(series.tag):
            continue
        own = series.finite
        _, at, of = np.intersect1d(step, own.step, return_indices=True)
        if len(at) < 20 or len(at) < 0.8 * len(step) or own.value[of].min() <= 0:
            continue
        y = np.log(own.value[of])
        third = len(at) // 3
        rises = median(y[-third:]) - median(y[:third])
        alike = _rank_correlation(np.diff(x[at]), np.diff(y))
        if rises >= 0.5 * shift and alike >= max(0.3, 3 / len(at) ** 0.5):
            times = number(np.exp(rises))
            return f"{series.tag} rises {times} times, and goes up and down with it: likely longer episodes"
    return ""


def _rank_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's correlation of two series; 0 where one of them does not vary."""
    if not (np.ptp(x) and np.ptp(y)):
        return 0.0
    first, second = (np.argsort(np.argsort(z, kind="stable")) for z in (x, y))
    return float(np.corrcoef(first, second)[0, 1])


def timings(view: View, points: int) -> list[Timing]:
    """All series that show how long steps took, the most direct first; wall times only if nothing else is logged."""
    found = [_timing(s, "step time") for s in view.of("step_time")] + [
        _timing(s, "throughput") for s in view.of("throughput")
    ]
    usable = [t for t in found if len(t.cost) >= points and not _counter(t.series)]
    return usable or [t for t in (_from_wall_time(view),) if t is not None and len(t.cost) >= points]


def _counter(series: Series) -> bool:
    """Whether the values only grow: time since the start, not time per step. That of a new attempt begins low."""
    value, moves = series.value, np.diff(series.value)
    goes_on = value[1:] > 0.5 * value[:-1]
    again = goes_on.mean() > 0.9 and (moves[goes_on] > 0).mean() > 0.97
    return bool((moves >= 0).mean() > 0.97 or again)


def _timing(raw: Series, how: str) -> Timing:
    series = raw.finite
    series = series.take(series.value > 0)
    return Timing(series, series.value if how == "step time" else 1 / np.maximum(series.value, 1e-300), how)


def _from_wall_time(view: View) -> Timing | None:
    """Differences of the times at which rows of the loss were written, per step."""
    loss = view.main("loss")
    if loss is None or not loss.timed:
        return None
    series = loss.take(np.isfinite(loss.wall_time))
    if len(series) < 3:
        return None
    steps, seconds = np.diff(series.step), np.diff(series.wall_time)
    ok = (steps > 0) & (seconds > 0)
    if ok.mean() < 0.8:
        return None
    after = series.take(slice(1, None)).take(ok)
    return Timing(after, seconds[ok] / steps[ok], "times of the rows")
