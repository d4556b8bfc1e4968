"""Which of the counters that rows print counts the steps: one axis, where a log counts several things.

Rows count where the training is, but also samples of a listing, batches of an evaluation, or steps of a loop that
starts again for each sample. The counter beside the main quantity is the axis; others count where they agree with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.roles import role_of
from postmortem.core.stats import median
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.steps.epochs import family
from postmortem.readers.text.steps.row_store import BAR, EVALUATION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft
    from postmortem.readers.text.steps.row_store import StoredRows

_ROLES = ("loss", "val_loss", "reward", "perplexity", "accuracy", "val_accuracy")
"""Roles of the main quantity, the best first."""
_FEW = 10
"""Fewer points of the main quantity show nothing about an axis."""
_PASSES, _SURE_PASSES = 4, 8
"""So many equal passes of a counter are a loop: of known length, of unknown length. Fewer may be attempts that end at
the same step."""
_SHOWN = 3
"""Fewer rows of another counter show nothing against it."""
_STUCK = 3
"""Steps at which 20 points and more cannot all be."""
_OUTSIDE = 0.2
"""A counter with a larger share of its numbers out of place counts something else."""
_SMALL = 1 << 20
"""Numbers below it are counted rather than sorted."""


class Main(NamedTuple):
    """The quantity that shows whether an axis is plausible: `rows` are those that print it."""

    tag: int
    rows: NDArray[np.intp]


class Loop(NamedTuple):
    """A counter that starts again in each of `passes`, in `rows`; `length` is its printed total, if it reaches that."""

    rows: NDArray[np.intp]
    passes: int
    length: int | None


def main_quantity(draft: Draft) -> Main | None:
    """The loss with the most points; without a loss the best other score; without a score the most frequent known tag.

    A tag without a role is one only where no tag has one: listings of files and memory are longer than short logs.
    """
    count = draft.counts()
    if not count.any():
        return None
    roles = [role_of(tag) for tag in draft.tags]
    for role in _ROLES:
        of_role = np.where(np.array([r == role for r in roles], bool), count, 0)
        if of_role.max(initial=0) >= _FEW // 2:
            count = of_role
            break
    else:
        known = np.where(np.array([r is not None for r in roles], bool), count, 0)
        count = known if known.any() else count
    tag = int(count.argmax())
    return Main(tag, draft.cells.owner_of(np.flatnonzero(draft.keep & (draft.codes == tag))))


def starts_again(rows: StoredRows, step: NDArray[np.int64], exact: NDArray[np.bool_], main: Main) -> Loop | None:
    """The loop that the counter beside the main quantity counts, if it has several passes that are not numbered.

    Its passes begin and end with the same number: of epochs that are not printed, of samples, or of evaluations.
    """
    mine = main.rows[exact[main.rows] & np.isnan(rows["epoch"][main.rows]) & (rows["level"][main.rows] < Trust.GLOBAL)]
    if len(mine) < _FEW or len(mine) < 0.9 * len(main.rows) or (rows["rank"][mine] != rows["rank"][mine[0]]).any():
        return None
    n, total = step[mine], rows["total"][mine]
    fell = np.flatnonzero(n[1:] < n[:-1])
    finished = len(fell) > 0 and bool((total > 0).all()) and bool((n[fell] >= 0.9 * total[fell]).mean() > 0.9)
    if len(fell) + 1 < (_PASSES if finished else _SURE_PASSES) or n[0] > max(1, median(np.abs(np.diff(n)))):
        return None  # what was resumed from a checkpoint does not begin at the first step
    if (n[fell] != n[fell[0]]).mean() > 0.1 or (n[fell + 1] != n[0]).mean() > 0.1:
        return None
    return Loop(mine, len(fell) + 1, int(total.max()) if finished else None)


def counted_on(step: NDArray[np.int64], loop: Loop, notes: list[str]) -> NDArray[np.int64]:
    """The steps with those of a loop of known length counted on from pass to pass."""
    notes.append(
        f"the step counter starts again {loop.passes - 1} times, and no epoch is printed: "
        f"steps are counted on, {loop.length} in each pass"
    )
    n, step = step[loop.rows], step.copy()
    step[loop.rows] = n + (loop.length or 0) * np.concatenate(([0], np.cumsum(n[1:] < n[:-1])))
    return step


def agreeing(
    draft: Draft, step: NDArray[np.int64], exact: NDArray[np.bool_], main: Main
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """`exact` without rows whose counter contradicts that of the main quantity, and those that place rows without one.

    A second counter that runs beside the first, one ahead of it, places only its own rows. Left alone are other
    counters of the main quantity itself, and those of more trust: its steps may be computed from an assumed length.
    """
    rows = draft.rows
    named = main.rows[exact[main.rows]]
    if len(named) < _FEW or len(named) < 0.5 * len(main.rows):
        return exact, exact
    kind = _kinds(draft)
    ours = _most_frequent(kind[named])
    own = np.flatnonzero(exact & (kind == ours))
    if not _advances(step[own]):
        return exact, exact
    level = int(rows["level"][own[0]])
    other_rows = exact & (kind != ours) & (rows["flags"] & EVALUATION == 0) & (rows["level"] <= level)
    other_rows[main.rows] = False
    others = np.flatnonzero(other_rows)
    if not len(others):
        return exact, exact
    exact, placing = exact.copy(), exact.copy()
    near = 1 + median(np.abs(np.diff(step[own])))
    for other in _distinct(kind[others])[0]:
        mine = others[kind[others] == other]
        away = _away(rows["rank"], step, own, mine)
        if len(mine) >= _SHOWN and (away > 0).mean() > _OUTSIDE:
            placing[mine] = False
            exact[mine] = bool(_advances(step[mine]) and (away <= near).mean() > 0.9)
    return exact, placing & exact


def _kinds(draft: Draft) -> NDArray[np.int64]:
    """`family`, with the total of the counter and the first tag that the row prints."""
    rows, cells = draft.rows, draft.cells
    first = np.full(len(rows), len(draft.tags), np.int64)
    filled = np.flatnonzero(rows["count"] > 0)
    first[filled] = draft.codes[cells.end[filled] - rows["count"][filled]]
    kind: NDArray[np.int64] = family(rows).astype(np.int64) * (len(draft.tags) + 1) + first
    total = rows["total"]
    if (total > 0).any():  # else the numbers are small, see `_distinct`
        kind = (kind << 32) | np.maximum(total, 0)  # see MOST_TAGS and the type of the total
    return kind


def _distinct(kind: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The kinds that occur, and how often. Small numbers are counted, as sorting long columns is slow."""
    if kind.max(initial=0) >= _SMALL:
        kind = np.sort(kind)
        starts = np.append(0, np.flatnonzero(kind[1:] != kind[:-1]) + 1)
        return kind[starts], np.diff(np.append(starts, len(kind)))
    count = np.bincount(kind)
    kinds = np.flatnonzero(count)
    return kinds, count[kinds]


def _most_frequent(kind: NDArray[np.int64]) -> int:
    """The kind of most rows. Nearly always all are of one."""
    if (kind == kind[0]).all():
        return int(kind[0])
    kinds, count = _distinct(kind)
    return int(kinds[count.argmax()])


def _advances(step: NDArray[np.int64]) -> bool:
    """Whether a counter rises, but for a few restarts."""
    moves = np.diff(step)
    return bool((moves < 0).sum() <= 0.02 * len(moves) + 1)


def _away(
    rank: NDArray[np.int16], step: NDArray[np.int64], own: NDArray[np.intp], rows: NDArray[np.intp]
) -> NDArray[np.int64]:
    """How far the steps of `rows` are from the interval between those of `own` (of their rank, if any) around them."""
    away = np.zeros(len(rows), np.int64)
    for r in _distinct(rank[rows] + np.int64(1))[0] - 1:
        mine = rank[rows] == r
        named = own[rank[own] == r] if (rank[own] == r).any() else own
        at, n = np.searchsorted(named, rows[mine]), step[rows[mine]]
        before = np.where(at > 0, step[named[np.maximum(at - 1, 0)]], n)
        after = np.where(at < len(named), step[named[np.minimum(at, len(named) - 1)]], n)
        below, above = np.maximum(before - n, 0), np.maximum(n - after, 0)
        away[mine] = np.where(after < before, np.minimum(below, above), np.maximum(below, above))  # else a restart
    return away


def places(step: NDArray[Any], main: Main) -> int:
    """At how many different steps the main quantity is."""
    return len(distinct(step[main.rows]))


def is_plausible(step: NDArray[np.int64], exact: NDArray[np.bool_], main: Main) -> bool:
    """Whether the steps can be those of the main quantity: it is at more than a few, and they follow the lines.

    A row that does not name its step has the last one named: if that was the last of a listing, all rows have it.
    """
    if len(main.rows) < 2 * _FEW:
        return True
    at = step[main.rows]
    if exact[main.rows].mean() < 0.5:
        return places(step, main) > _STUCK
    moves = np.diff(at)
    moves = moves[moves != 0]
    if not len(moves) or (moves < 0).mean() <= 0.3:
        return True
    ranks = np.argsort(np.argsort(at, kind="stable"), kind="stable")
    return bool(np.corrcoef(ranks, np.arange(len(at)))[0, 1] > 0.5)


def lacks_epochs(epoch: NDArray[np.float64], rows: StoredRows, main: Main) -> bool:
    """Whether the bars start again far more often than epochs are named.

    A terminal was recorded without most of the headers ``Epoch 1/20``: in which epoch the points are is not known.
    """
    bars = np.flatnonzero((rows["flags"] & BAR > 0) & (rows["total"] > 1) & (rows["count"] > 0))
    if len(main.rows) < 2 * _FEW or not len(bars):
        return False
    total = rows["total"][bars]
    bars = bars[total == _most_frequent(total.astype(np.int64))]
    again = int((np.diff(rows["step"][bars]) < 0).sum())
    return again >= 2 * places(epoch, main) + _SHOWN


def is_stuck(epoch: NDArray[np.float64], step: NDArray[np.int64], exact: NDArray[np.bool_], main: Main) -> bool:
    """Whether all points of the main quantity have one step, that of a bar of which only the end is logged, and are
    told apart by the epochs in the headings above them."""
    if exact[main.rows].mean() >= 0.5 or places(step, main) > 1:
        return False
    named = np.maximum.accumulate(np.where(np.isnan(epoch), -1, np.arange(len(epoch))))[main.rows]
    own = np.where(named >= 0, epoch[named], np.nan)
    return not np.isnan(own).any() and len(distinct(own)) >= max(5, 0.9 * len(own))


def is_finer(epoch: NDArray[np.float64], step: NDArray[np.int64], exact: NDArray[np.bool_], main: Main) -> bool:
    """Whether epochs tell the points of the main quantity apart that the steps, which its rows do not name, do not."""
    if exact[main.rows].mean() >= 0.5 or np.isnan(epoch[main.rows]).any():
        return False
    if len(main.rows) < _FEW:  # all at one step, as behind bars that start again, but each of another epoch
        return places(step, main) == 1 and places(epoch, main) == len(main.rows) > 1
    return places(epoch, main) >= max(5, 10 * places(step, main))


def is_alone(epoch: NDArray[np.float64], exact: NDArray[np.bool_]) -> bool:
    """Whether one row names a step, where rows name many epochs: a number of the configuration, as ``batch=128``."""
    return bool(exact.sum() == 1) and len(distinct(epoch[~np.isnan(epoch)])) >= _FEW


def cycles(draft: Draft) -> NDArray[np.int64]:
    """A count that rises with each row that prints a tag again."""
    step = np.zeros(len(draft.rows), np.int64)
    owner, codes = draft.cells.owner()[draft.keep], draft.codes[draft.keep]
    seen: set[int] = set()
    cycle = 0
    last = -1
    for row, code in zip(owner.tolist(), codes.tolist(), strict=True):
        if row != last:
            last = row
            fresh = True
        if code in seen and fresh:
            cycle += 1
            seen = set()
        fresh = False
        seen.add(code)
        step[row] = cycle
    return step
