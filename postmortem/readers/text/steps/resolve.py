"""Which step a number belongs to: from positions as rows print them to one step axis for the file.

In order of trust: a step that the row names; a position within an epoch, made global with the length of an
epoch; the redrawn bar around the row; the last step named before; the epoch; the order of lines. All in numpy,
over the whole file at once, because one line cannot tell whether its counter starts again in every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.points import Points
from postmortem.core.roles import role_of
from postmortem.readers.text.steps.announced_length import planned
from postmortem.readers.text.steps.epochs import carried_epoch, from_bars, global_steps
from postmortem.readers.text.steps.repeats import again, last_states
from postmortem.readers.text.steps.row_store import HELD, HELD_BARE, MAYBE, MOST_TAGS, NO_STEP, OTHERS, Cells, squeeze

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.announced_length import Announcements
    from postmortem.readers.text.steps.row_store import Table, Track


_PIECE = 1 << 16


@dataclass(slots=True)
class Resolved:
    """Points of the file, the step known at each row, and how steps were found."""

    points: Points
    line: NDArray[np.uint32]
    rank: NDArray[np.int16]
    step: NDArray[np.int64]
    """Last step known at this row; NO_STEP where none was."""
    axis: str = "step"
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    """How long the training was to be, and how far it came; see `_plan.planned`."""


def resolve(track: Track, announced: Announcements | None = None) -> Resolved:
    """Gives every value its step; drops repeated states of bars and what was printed before the training began.

    `announced` is what the text says of the length of the training.
    """
    rows, codes, values = track.release()
    tags = list(track.tags)
    notes: list[str] = []
    skipped: dict[str, int] = {}
    if not len(rows):
        return Resolved(Points.empty(), rows["line"], rows["rank"], rows["step"], "row")
    codes, tags = _held_out(codes, tags)
    if (far := (rows["epoch"] >= 2.0**40) | (rows["epoch"] <= -(2.0**40))).any():  # of a damaged line
        rows = rows.with_column("epoch", np.where(far, np.nan, rows["epoch"]))
    cells = Cells(rows["count"])
    keep_row = last_states(rows)
    step, exact = global_steps(rows, notes)
    step, exact = from_bars(rows, step, exact, notes)
    has_steps = bool((exact & (rows["count"] > 0)).any() or exact.sum() > 1)
    keep = np.ones(len(codes), bool)
    keep[cells.of(np.flatnonzero(~keep_row))] = False
    if OTHERS in track.tags:
        _drop(np.flatnonzero(codes == tags.index(OTHERS)), keep, skipped, f"numbers under any but the first {MOST_TAGS} names")
    axis = "step"
    epoch = carried_epoch(rows)
    if has_steps:
        step = at_row = _carried(rows, step, exact)
        whole = _whole(epoch)
        early = np.flatnonzero((step == NO_STEP) & whole)  # an evaluation before the first step
        if len(early):
            step = step.copy()
            step[early] = epoch[early].astype(np.int64)
        stray = cells.of(np.flatnonzero(step == NO_STEP))
        _drop(stray, keep, skipped, "numbers printed before the first step")
        _drop(_implausible(rows, codes, cells, exact, keep, tags, step, whole), keep, skipped, "numbers outside the training loop")
    else:
        at_row = np.full(len(rows), NO_STEP)
        whole = _whole(epoch)
        if (whole & (rows["count"] > 0)).any() and not (~whole & ~np.isnan(epoch)).any():
            axis = "epoch"
            step = np.where(whole, epoch, 0).astype(np.int64)
            step = np.where(whole, step, NO_STEP)
            at_row = step
            keep[cells.of(np.flatnonzero(step == NO_STEP))] = False
            notes.append("no step is printed: the epoch stands for it")
        elif (counter := _counter(rows, cells.owner(), codes, values, keep, tags)) is not None:
            step = at_row = _carried(rows, counter, counter != NO_STEP)
            keep[cells.of(np.flatnonzero(step == NO_STEP))] = False
            notes.append("no step is named: a number that rises from row to row stands for it")
        else:
            axis = "row"
            keep &= _repeated(codes, keep, tags, skipped)
            step = _cycles(cells.owner(), codes, keep, len(rows))
            if keep.any():
                notes.append("no step is printed: the order of lines stands for it")
    keep, codes, tags = _maybe(codes, keep, tags, notes)
    if axis != "row":
        keep &= ~again(rows, cells, codes, values, step, keep, tags, skipped)
    plan = planned(rows, at_row if axis == "step" else np.full(len(rows), NO_STEP), epoch, keep_row, announced)
    line, rank, wall_time, count = rows["line"], rows["rank"], rows["wall_time"], rows["count"]
    del rows, epoch, exact
    if not keep.all():
        count = count.copy()
        np.subtract.at(count, cells.owner_of(np.flatnonzero(~keep)), 1)
        codes, values = squeeze(codes, keep), squeeze(values, keep)
    del keep, cells
    there = _used(codes, len(tags))
    if not there.all():
        _renumber(codes, (np.cumsum(there) - 1).astype(codes.dtype))
    tags = [t for t, used in zip(tags, there, strict=True) if used]
    points = Points.of_rows(tags, codes, values, count, step, wall_time, rank)
    return Resolved(points, line, rank, at_row, axis, notes, skipped, plan)


def _used(codes: NDArray[np.uint16], n: int) -> NDArray[np.bool_]:
    """Which of n tags there are; in pieces, as codes are made wide to be counted."""
    count = np.zeros(n, np.int64)
    for start in range(0, len(codes), _PIECE):
        count += np.bincount(codes[start : start + _PIECE], minlength=n)
    return count > 0


def _renumber(codes: NDArray[np.uint16], new: NDArray[np.uint16]) -> None:
    for start in range(0, len(codes), _PIECE):
        codes[start : start + _PIECE] = new.take(codes[start : start + _PIECE])


def _whole(epoch: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where an epoch is known and has no fraction."""
    whole = np.zeros(len(epoch), bool)
    known = np.flatnonzero(~np.isnan(epoch))
    whole[known] = epoch[known] == np.floor(epoch[known])
    return whole


def _drop(values: NDArray[Any], keep: NDArray[np.bool_], skipped: dict[str, int], what: str) -> None:
    """Leaves out these values and counts those that were not left out yet."""
    if n := int(keep[values].sum()):
        skipped[what] = skipped.get(what, 0) + n
        keep[values] = False


def _count(skipped: dict[str, int], what: str, mask: NDArray[np.bool_]) -> None:
    if n := int(mask.sum()):
        skipped[what] = skipped.get(what, 0) + n


def _carried(rows: Table, step: NDArray[np.int64], exact: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The step of each row; those without one get the last one of their rank, else of any."""
    asking = np.flatnonzero(~exact)
    if not len(asking):
        return step
    step = step.copy()
    starts = np.concatenate(([True], asking[1:] != asking[:-1] + 1))  # of rows in a row that ask
    last = asking[np.maximum.accumulate(np.where(starts, np.arange(len(asking)), 0))] - 1
    rank = rows["rank"][asking]
    for r in np.unique(rank):
        mine = rank == r
        named = np.flatnonzero(exact & (rows["rank"] == r)) if r != -1 else asking[:0]
        if len(named):
            before = np.searchsorted(named, asking[mine])
            last[mine] = np.where(before > 0, named[np.maximum(before - 1, 0)], -1)
    step[asking] = np.where(last >= 0, step[last], NO_STEP)
    return step


def _implausible(
    rows: Table,
    codes: NDArray[np.uint16],
    cells: Cells,
    exact: NDArray[np.bool_],
    keep: NDArray[np.bool_],
    tags: list[str],
    step: NDArray[np.int64],
    placed: NDArray[np.bool_],
) -> NDArray[Any]:
    """Indices of values that are no metrics, of rows without a step: there a tag has to be a known quantity or come back.

    Between the last step of an attempt and the first of the next stands the configuration of the new one:
    there only tags count that are printed elsewhere between steps, too.
    """
    filled = rows["count"] > 0
    loose_rows = np.flatnonzero(~exact & ~placed & filled)
    named = np.flatnonzero(exact & filled)
    if not len(loose_rows) or not len(named):
        return np.empty(0, np.int64)
    following = np.searchsorted(named, loose_rows, side="right")
    ahead = np.where(following < len(named), step[named[np.minimum(following, len(named) - 1)]], np.iinfo(np.int64).max)
    gap = np.repeat(ahead < step[loose_rows], rows["count"][loose_rows])
    loose = cells.of(loose_rows)
    gap, loose = gap[keep[loose]], loose[keep[loose]]
    here = np.bincount(codes[loose[~gap]], minlength=len(tags))
    known = np.array([n > 0 and role_of(t) is not None for t, n in zip(tags, here.tolist(), strict=True)], bool)
    fine = (here >= 3) | known
    if ((here > 0) & ~fine).any():
        own = keep.copy()
        own[loose] = False
        stepped = np.zeros(len(tags), bool)
        stepped[codes[own]] = True
        fine |= (here > 0) & stepped
    foreign: NDArray[Any] = loose[~fine[codes[loose]]]
    return foreign


def _repeated(codes: NDArray[np.uint16], keep: NDArray[np.bool_], tags: list[str], skipped: dict[str, int]) -> NDArray[np.bool_]:
    """Without any step: only tags that come back, or are a loss or a score, are metrics; the rest is a listing."""
    count = np.bincount(codes[keep], minlength=len(tags))
    role = [role_of(t) for t in tags]
    longest = max((int(c) for c, r in zip(count, role, strict=True) if r in ("loss", "val_loss", "accuracy", "perplexity", "reward")), default=0)
    fine = np.array(
        [
            c >= 3 or (r in ("loss", "val_loss", "accuracy", "val_accuracy", "perplexity", "reward", "grad_norm")) or (c == longest > 0)
            for c, r in zip(count, role, strict=True)
        ],
        bool,
    )
    if longest == 0 and not (count >= 3).any():
        fine[:] = False
    ok = fine[codes]
    _count(skipped, "numbers printed once, without a step", keep & ~ok)
    return ok


def _counter(
    rows: Table, owner: NDArray[np.int32], codes: NDArray[np.uint16], values: NDArray[np.float64], keep: NDArray[np.bool_], tags: list[str]
) -> NDArray[np.int64] | None:
    """The step of each row by an unknown whole number that rises in almost every row; None where there is none."""
    if not keep.any():
        return None
    count = np.bincount(codes[keep], minlength=len(tags))
    first = np.ones(len(codes), bool)
    first[1:] = owner[1:] != owner[:-1]  # it stands first in its row
    leads = np.bincount(codes[keep & first], minlength=len(tags)) > 0
    for code in np.flatnonzero(leads & (count >= max(4, 0.9 * count.max()))).tolist():
        mine = np.flatnonzero(keep & (codes == code))
        v = values[mine]
        if role_of(tags[code]) is not None or not np.isfinite(v).all() or (v != np.floor(v)).any():
            continue
        if (np.abs(v) < 2**53).all() and (np.diff(v) > 0).mean() > 0.9 and not (np.diff(v) == 0).any():
            step = np.full(len(rows), NO_STEP)
            step[owner[mine]] = v.astype(np.int64)
            return step
    return None


def _cycles(owner: NDArray[np.int32], codes: NDArray[np.uint16], keep: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
    """A count that rises with each row that prints a tag again."""
    step = np.zeros(n, np.int64)
    seen: set[int] = set()
    cycle = 0
    last = -1
    for row, code in zip(owner[keep].tolist(), codes[keep].tolist(), strict=True):
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


def _held_out(codes: NDArray[np.uint16], tags: list[str]) -> tuple[NDArray[np.uint16], list[str]]:
    """Names the values of evaluations: by their split where they would pass for the training's."""
    if not any(t[0] in (HELD, HELD_BARE) for t in tags if t):
        return codes, tags
    plain = set(tags)
    final: dict[str, int] = {}
    map_ = np.empty(len(tags), codes.dtype)
    for i, tag in enumerate(tags):
        if tag[:1] in (HELD, HELD_BARE):
            split, _, name = tag[1:].partition(HELD)
            mistaken = name in plain or (tag[0] == HELD and role_of(name) in ("loss", "perplexity"))
            tag = f"{split} {name}" if mistaken else name
        map_[i] = final.setdefault(tag, len(final))
    return map_[codes], list(final)


def _maybe(
    codes: NDArray[np.uint16], keep: NDArray[np.bool_], tags: list[str], notes: list[str]
) -> tuple[NDArray[np.bool_], NDArray[np.uint16], list[str]]:
    """Tags that a row family left out: NaN where it had printed them before."""
    where = {t: i for i, t in enumerate(tags)}
    for tag in [t for t in tags if t.startswith(MAYBE)]:
        real = where.get(tag[1:])
        mine = codes == where[tag]
        if real is None:
            keep = keep & ~mine
            continue
        first = int(np.flatnonzero(codes == real)[0])
        early = mine.copy()
        early[first:] = False
        keep = keep & ~early
        left = mine & keep
        if left.any():
            notes.append(
                f"{tag[1:]} is missing from {int(left.sum())} lines that print it otherwise: "
                "its writer leaves out NaN (and negative) means, so these points are NaN"
            )
        codes = np.where(mine, real, codes).astype(codes.dtype)
    return keep, codes, tags
