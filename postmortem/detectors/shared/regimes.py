"""Regimes that a log announces, as a schedule or in words: when they change, and whether a change explains a finding.

A schedule is set by the training code and not measured, so its values have no noise: it is constant in stretches (a
task, a resolution, the number of trained layers) or goes smoothly from one value to another (the weight of a loss term,
a temperature). Its name does not matter, except that some names show something else with the same shape: a counter, a
setting of the optimizer (which changes how, not what is learned), hardware, or what a fault leaves behind.

An announcement in words ("Phase 2: fine-tuning") is a change at the step at which it stands. How much of what was
learned it may cost depends on what it announces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.core.model import Event
    from postmortem.core.series import Series
    from postmortem.core.view import View

_UNUSED = 8
"""Rows in which a part of a loss is exactly 0 before it is switched on."""
_MOST = 20
"""Changes of one tag beyond which it marks no regimes."""
_REPEATS, _ROWS_APART = 3, 20
"""So many jumps, at least so many rows apart, show a period: by chance 1 in 100 such lie at its multiples."""
_FAR = 3.0
"""How far above its first level a loss may rise with a schedule; beyond that it is not only the task that changed."""
_HARDER = later(r"(?:^|[^a-z])(?:curriculum|difficulty|horizon|seq(?:uence)?_?len(?:gth)?)(?:$|[^a-z])")
"""Names of what makes a task harder bit by bit, which may begin with next to no loss; so may a count of it."""

Cost = Literal["nothing", "half", "all"]
_COSTS: tuple[Cost, ...] = ("nothing", "half", "all")
_ANNOUNCED: dict[str, Cost] = {"new-phase": "all", "setup-change": "half", "warmup-over": "nothing"}
"""What an announcement may cost of what was learned. A new task may cost all. Layers that were unfrozen with too high a
learning rate lose it as well, and that is a failure; so is a loss that rises where the learning rate is highest."""
_TWICE = 10
"""Lines within which an announcement that is printed again is the same one, by another logger."""
_SAID = 80

_WORDS = r"(?:^|[^a-z])(?:{})s?(?:$|[^a-z])"
_COUNTER = (
    "(?:global_?)?step|iter|iteration|epoch|update|episode|time|timestamp|second|sec|ms|minute|hour|eta|elapsed|wall|"
    "token|sample|example|flop|flo|progress|percent|pct|remaining|count|counter|seen|consumed|index|idx|runtime"
)
_OPTIMIZER = r"momentum|weight_?decay|wd|ema(?:_\w+)?|betas?_?[12]|betas|lr|learning_?rate"
_MACHINE = r"gpu\w*|cuda|cpu|disk|network|system|sys|proc|host|node|worker|world(?:_size)?|rank|power|clock|fan|util\w*"
_LEFT_BEHIND = (
    r"best|patience|wait|bad|nan|nans|inf|infs|nonfinite|skip|skipped|overflow\w*|fail\w*|error|retry|retries|restart|"
    r"alive|lost|dropped|grad|gradient|norm"
)
_SPLIT = "^(?:train|training|val|valid|validation|dev|test|eval)$"
"""The score of a split, where a row has one: ``Loss: 1.93, Train: 0.15, Val: 0.16``."""
_NO_SCHEDULE = later(_WORDS.format("|".join((_COUNTER, _OPTIMIZER, _MACHINE, _LEFT_BEHIND))) + f"|{_SPLIT}")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a schedule from `before` (its value at step `first`) to `after` (reached at step `last`).

    `jump` is true if it changed from one row to the next, false if it took several rows. `words` is the announcement
    of a change that is not logged as a number; `costs` how much of what was learned it may cost.
    """

    tag: str
    first: int
    last: int
    before: float
    after: float
    jump: bool
    words: str = ""
    costs: Cost = "all"

    def allows(self, first: float, before: float, after: float) -> bool:
        """Whether a loss that began at `first` and was at `before` may lie at `after` for good with this change."""
        if self.costs == "all":
            return True
        return self.costs == "half" and after <= before + 0.5 * max(first - before, 0.0)

    def __str__(self) -> str:
        """The change in words: "task changes from 0 to 1 at step 200"."""
        if self.words:
            return f"the log announces {self.words}"
        when = f"at step {self.last}" if self.jump else f"from step {self.first} to step {self.last}"
        return f"{self.tag} changes from {number(self.before)} to {number(self.after)} {when}"


def changes(view: View) -> dict[str, list[Change]]:
    """The changes of each schedule of the run, in order, by tag; worked out once per view."""
    if "regimes" not in view.cache:
        found: dict[str, list[Change]] = {}
        for series in view.series:
            made: list[Change] = []
            if series.role is None and series.tag not in found and not _NO_SCHEDULE.search(_plain(series.tag)):
                made = _of(series.finite)
            elif series.role == "loss" and series.tag not in found:
                made = _switched_on(series.finite)
            if made:
                found[series.tag] = made
        view.cache["regimes"] = found
    known: dict[str, list[Change]] = view.cache["regimes"]
    return known


def announced(view: View) -> list[Change]:
    """The changes that the log announces in words, in the order of the steps; worked out once per view.

    What was printed before announces no change, be it with every epoch or by another start of the same program; and
    many different announcements count something.
    """
    if "announced" not in view.cache:
        found: list[Change] = []
        for kind, costs in _ANNOUNCED.items():
            first: dict[str, Event] = {}
            for event in view.events:
                if event.kind == kind:
                    first.setdefault(str(event.fields.get("said")), event)
            new = [(e.step, e) for e in first.values() if e.step is not None and not _comes_again(e)]
            if len(new) <= _MOST:
                found += [Change(kind, step, step, np.nan, np.nan, True, _said(e), costs) for step, e in new]
        view.cache["announced"] = sorted(found, key=lambda change: change.first)
    known: list[Change] = view.cache["announced"]
    return known


def change_at(
    view: View, series: Series, step: int, *, near: int = 3, ends: bool = False, costs: Cost = "nothing"
) -> Change | None:
    """The jump of a schedule at `step`, give or take `near` rows of `series`, or None.

    With `ends`, also a slow change that begins or ends there. Only changes that may cost as much as `costs`.
    """
    at = int(np.searchsorted(series.step, step))
    for made in (*changes(view).values(), announced(view)):
        for change in made:
            if _COSTS.index(change.costs) < _COSTS.index(costs):
                continue
            first = int(np.searchsorted(series.step, change.first, side="right"))
            last = int(np.searchsorted(series.step, change.last))
            jumps = change.jump and first - near < at <= last + near
            if jumps or (ends and not change.jump and min(abs(at - first), abs(at - last)) <= near):
                return change
    return None


def period_of(series: Series, jumps: Sequence[int]) -> int | None:
    """The number of steps whose multiples are the steps of three and more jumps (indices of points), or None.

    Something that a program does every N steps is done at the multiples of N. A bad batch that comes again in every
    epoch has equal distances too, but an offset.
    """
    steps = np.sort(series.step[list(jumps)])
    if len(steps) < _REPEATS:
        return None
    period, near = int(np.diff(steps).min()), median(np.diff(series.step))
    offset = steps % period if period > 0 else steps
    at_multiples = (offset <= near) | (offset == period - 1)
    return period if period >= _ROWS_APART * near and at_multiples.all() else None


def change_behind(view: View, series: Series, smooth: NDArray[np.float64], best: int, at: int) -> Change | None:
    """The change of a schedule that explains why log(loss) rises from point `best` to the end, or None.

    `smooth` is log(loss) without its noise, `at` the onset. At least 70 % of the rise has to happen while one
    schedule changes, slowly if that changes slowly, and no more than 30 % after its last change; and the loss has to
    stay below three times its first level: where it does not, not only the task has changed, unless it is said to get
    harder bit by bit.
    """
    n = len(smooth)
    end, first = median(smooth[-max(3, n // 12) :]), median(smooth[: max(3, n // 50)])
    rise = end - float(smooth[best])
    levels = tuple(float(np.exp(level)) for level in (first, smooth[best], end))
    too_far = end > first + np.log(_FAR)
    for made in (*changes(view).values(), announced(view)):
        if too_far and not (made and _HARDER.search(_plain(made[0].tag)) and not made[0].jump):
            continue
        spans = [(*_rows(series, change), change) for change in made]
        spans = [(a, b, change) for a, b, change in spans if b > best and change.allows(*levels)]
        begun = [change for a, _, change in spans if a <= at]
        if not begun or at > spans[-1][1] or end - float(smooth[spans[-1][1]]) > 0.3 * rise:
            continue
        lag = min(max(2, n // 40), 12)  # a centred median rises before the loss does
        starts = [max(a - lag, min(a, best)) if change.jump else max(a, best) for a, _, change in spans]
        gains = [
            float(smooth[b] - smooth[a])
            for a, (_, b, change) in zip(starts, spans, strict=True)
            if change.jump or _as_slow(smooth[a : b + 1])
        ]
        if sum(max(gain, 0.0) for gain in gains) >= 0.7 * rise:
            return begun[-1]
    return None


def valley(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """log(loss) `x` without its noise, over short and over wide windows, and its lowest point before the end."""
    n = len(x)
    smooth = centred_median(x, 2 * min(max(2, n // 40), 12) + 1)
    wide = centred_median(x, 2 * max(4, n // 16) + 1)  # the minimum over short windows would be biased low
    return smooth, wide, int(np.argmin(wide[: n - max(2, n // 20)]))


def far_above_start(series: Series, value: float, times: float = 10.0) -> bool:
    """Whether a loss value is so high that no new task explains it: a model may be sure of what is now wrong, and
    its loss then exceeds that of an untrained one, but not by any factor."""
    return value > times * median(np.abs(series.value[: max(3, len(series) // 50)]))


def _rows(series: Series, change: Change) -> tuple[int, int]:
    """The rows of `series` in which a change shows: two rows before it, and until a model has got used to it."""
    n = len(series)
    first = int(np.searchsorted(series.step, change.first, side="right")) - 2
    last = int(np.searchsorted(series.step, change.last)) + max(5, n // 25)
    return max(0, min(first, n - 1)), min(last, n - 1)


def _as_slow(smooth: NDArray[np.float64]) -> bool:
    """Whether the rise of these points takes a fifth of them or more: a slow change does not explain a fast rise."""
    if len(smooth) < 25:
        return True
    low, high = float(smooth[0]), float(smooth[-1])
    most = np.flatnonzero(smooth >= low + 0.9 * (high - low))
    least = np.flatnonzero(smooth[: int(most[0]) + 1] <= low + 0.1 * (high - low))
    return bool(len(least) and most[0] - least[-1] >= 0.2 * len(smooth))


def _comes_again(event: Event) -> bool:
    """Whether an announcement is printed again later, by other than the other ranks or another logger."""
    count, last = int(event.fields.get("count", 1)), event.fields.get("last_line")
    ranks = len(event.fields.get("ranks", ())) or 1
    return last is not None and count > ranks and int(last) - (event.line or 0) > _TWICE * ranks


def _said(event: Event) -> str:
    """An announcement without its decoration, short enough for a sentence, and its place."""
    said = event.message.strip(" \t=-*#~_>|<!").replace('"', "'")
    said = said if len(said) <= _SAID else said[: _SAID - 1].rstrip() + "…"
    names_it = event.step in (event.fields.get("step"), event.fields.get("epoch"))
    return f'"{said}" {"at" if names_it else "after"} step {event.step}'


def _plain(tag: str) -> str:
    """A tag in small letters, with an underscore where a word begins."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tag).lower()


def _of(series: Series) -> list[Change]:
    """The changes of a series if it is a schedule, else none."""
    x, n = series.value, len(series)
    if n < 8:
        return []
    delta = np.diff(x)
    delta[np.abs(delta) <= 1e-6 * np.abs(x).max()] = 0.0
    moved = np.flatnonzero(delta)
    flips = int(np.count_nonzero(np.diff(np.sign(delta[moved])) != 0)) if len(moved) else 0
    if not len(moved) or flips > max(6, n // 50):
        return []
    apart = (np.diff(moved) > max(3, n // 20)) | (np.diff(np.sign(delta[moved])) != 0)
    spans = np.split(moved, np.flatnonzero(apart) + 1)
    if len(spans) > _MOST or not all(_smooth(x, delta[span]) for span in spans):
        return []
    counts = len(spans) == 1 and len(moved) > 0.9 * (n - 1) and bool((x == np.round(x)).all())
    if counts and not _HARDER.search(_plain(series.tag)):
        return []  # whole numbers that grow from the first row to the last count something
    return [
        Change(
            series.tag,
            int(series.step[span[0]]),
            int(series.step[span[-1] + 1]),
            float(x[span[0]]),
            float(x[span[-1] + 1]),
            len(span) == 1,
        )
        for span in spans
    ]


def _switched_on(part: Series) -> list[Change]:
    """The change of a part of a loss from exactly 0, where it was for eight rows and more, to other values for good."""
    used = np.flatnonzero(part.value)
    first = int(used[0]) if len(used) else 0
    if first < _UNUSED or len(used) < 0.9 * (len(part) - first):
        return []
    step, value = part.step, part.value
    return [Change(part.tag, int(step[first - 1]), int(step[first]), 0.0, float(value[first]), True)]


def _smooth(x: NDArray[np.float64], delta: NDArray[np.float64]) -> bool:
    """Whether the increments of a change vary smoothly, up to rounding: those of something measured do not."""
    if len(delta) < 6:
        return True
    digits = next((d for d in range(8) if np.allclose(np.round(x, d), x, rtol=1e-6, atol=0)), 8)
    return bool(median(np.abs(np.diff(delta))) <= 0.05 * median(np.abs(delta)) + 1.5 * 10.0**-digits)
