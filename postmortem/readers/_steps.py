"""Which step a number belongs to: from positions as rows print them to one step axis for the file.

In order of trust: a step that the row names; a position within an epoch, made global with the length of an
epoch; the redrawn bar around the row; the last step named before; the epoch; the order of lines. All in numpy,
over the whole file at once, because one line cannot tell whether its counter starts again in every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.reading import Points
from postmortem.core.roles import role_of
from postmortem.readers._track import BAR, EVALUATION, FRACTIONAL, HELD, HELD_BARE, MAYBE, NO_STEP, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers._track import Table, Track

_AT_ONCE = 1 << 19
"""About so many values are sorted at once."""
_ROWS_AT_ONCE, _SLOTS = 1 << 16, 1 << 22


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


def resolve(track: Track) -> Resolved:
    """Gives every value its step; drops repeated states of bars and what was printed before the training began."""
    rows, codes, values = track.release()
    tags = list(track.tags)
    notes: list[str] = []
    skipped: dict[str, int] = {}
    if not len(rows):
        return Resolved(Points.empty(), rows["line"], rows["rank"], rows["step"], "row")
    codes, tags = _held_out(codes, tags)
    if (far := np.abs(rows["epoch"]) >= 2.0**40).any():  # of a damaged line
        rows = rows.with_column("epoch", np.where(far, np.nan, rows["epoch"]))
    cells = _Cells(rows["count"])
    keep_row = _last_states(rows)
    step, exact = _global_steps(rows, keep_row, notes)
    step, exact = _from_bars(rows, step, exact, notes)
    has_steps = bool((exact & (rows["count"] > 0)).any() or exact.sum() > 1)
    keep = np.ones(len(codes), bool)
    keep[cells.of(np.flatnonzero(~keep_row))] = False
    axis = "step"
    epoch = _carried_epoch(rows)
    if has_steps:
        step = at_row = _carried(rows, step, exact)
        whole = epoch == np.floor(epoch)
        early = np.flatnonzero((step == NO_STEP) & whole)  # an evaluation before the first step
        if len(early):
            step = step.copy()
            step[early] = epoch[early].astype(np.int64)
        stray = cells.of(np.flatnonzero(step == NO_STEP))
        _drop(stray, keep, skipped, "numbers printed before the first step")
        _drop(_implausible(rows, codes, cells, exact, keep, tags, step, whole), keep, skipped, "numbers outside the training loop")
    else:
        at_row = np.full(len(rows), NO_STEP)
        whole = ~np.isnan(epoch) & (epoch == np.floor(epoch))
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
        keep &= ~_again(rows, cells, codes, values, step, keep, tags, skipped)
    line, rank, wall_time, count = rows["line"], rows["rank"], rows["wall_time"], rows["count"]
    del rows, epoch, exact
    if not keep.all():
        count = count - np.bincount(cells.owner_of(np.flatnonzero(~keep)), minlength=len(count))
        codes = codes[keep]
        values = values[keep]
    del keep, cells
    there = np.bincount(codes, minlength=len(tags)) > 0
    if not there.all():
        codes = (np.cumsum(there) - 1).astype(np.int32)[codes]
    tags = [t for t, used in zip(tags, there, strict=True) if used]
    points = Points(tags, codes, np.repeat(step, count), values, np.repeat(wall_time, count), np.repeat(rank, count))
    return Resolved(points, line, rank, at_row, axis, notes, skipped)


class _Cells:
    """Which values are which row's: row i has `count[i]` of them, behind those of the rows before."""

    def __init__(self, count: NDArray[np.uint16]) -> None:
        self.count = count
        self.end = np.cumsum(count, dtype=np.int64)
        if len(count) and self.end[-1] < 2**31:
            self.end = self.end.astype(np.int32)

    def of(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Indices of the values of these rows."""
        if not len(rows):
            return np.empty(0, np.intp)
        count = self.count[rows]
        behind = np.cumsum(count, dtype=self.end.dtype)
        index = np.repeat(self.end[rows] - behind, count)
        index += np.arange(len(index), dtype=index.dtype)
        return index

    def owner_of(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """The rows of values, by their indices."""
        found: NDArray[np.intp] = np.searchsorted(self.end, values, side="right")
        return found

    def owner(self) -> NDArray[np.int32]:
        """The row of every value."""
        return np.repeat(np.arange(len(self.count), dtype=np.int32), self.count)


def _drop(values: NDArray[Any], keep: NDArray[np.bool_], skipped: dict[str, int], what: str) -> None:
    """Leaves out these values and counts those that were not left out yet."""
    if n := int(keep[values].sum()):
        skipped[what] = skipped.get(what, 0) + n
        keep[values] = False


def _count(skipped: dict[str, int], what: str, mask: NDArray[np.bool_]) -> None:
    if n := int(mask.sum()):
        skipped[what] = skipped.get(what, 0) + n


def _last_states(rows: Table) -> NDArray[np.bool_]:
    """False for states of a bar that the next state of the same bar at the same position replaces."""
    keep = np.ones(len(rows), bool)
    bars = np.flatnonzero(rows["flags"] & BAR)
    if len(bars) > 1:
        bars = bars[np.argsort(rows["rank"][bars], kind="stable")]
        bars = bars[rows["count"][bars] > 0]
        a, b = rows[bars[:-1]], rows[bars[1:]]
        same = (a["rank"] == b["rank"]) & (a["step"] == b["step"]) & (a["total"] == b["total"])
        same &= (a["epoch"] == b["epoch"]) | (np.isnan(a["epoch"]) & np.isnan(b["epoch"]))
        keep[bars[:-1][same & (b["count"] >= a["count"])]] = False
    return keep


def _carried_epoch(rows: Table) -> NDArray[np.float64]:
    """The epoch of a row, or of the header row (an epoch and nothing else) before it on its rank."""
    epoch: NDArray[np.float64] = rows["epoch"]
    if np.isnan(epoch).all():
        return epoch
    epoch = epoch.copy()
    header = ~np.isnan(epoch) & (rows["count"] == 0) & (rows["flags"] & BAR == 0) & (rows["step"] == NO_STEP)
    if header.any():
        for rank in np.unique(rows["rank"]):
            mine = np.flatnonzero(rows["rank"] == rank)
            said = header[mine] if header[mine].any() else None
            if said is None:
                continue
            last = np.maximum.accumulate(np.where(said, np.arange(len(mine)), -1))
            blank = np.isnan(epoch[mine]) & (last >= 0)
            epoch[mine[blank]] = rows["epoch"][mine[last[blank]]]
    return epoch


def _global_steps(rows: Table, keep: NDArray[np.bool_], notes: list[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Steps that rows name, positions within an epoch made global -> (step, whether the row names one)."""
    step = rows["step"].copy()
    flags = rows["flags"]
    held_out = (flags & EVALUATION) > 0
    exact = (step != NO_STEP) & ~held_out
    epoch = _carried_epoch(rows)
    within = exact & ~np.isnan(epoch) & (rows["level"] < 4)
    if not within.any():
        return step, exact
    lengths: dict[int, tuple[float, float]] = {}
    family = rows["dialect"].astype(np.int64) * 64 + rows["level"].astype(np.int64) * 4 + (rows["total"] > 0) * 2 + ((flags & BAR) > 0)
    for kind in np.unique(family[within]):
        mine = np.flatnonzero(within & (family == kind))
        e, n, total = epoch[mine], step[mine].astype(np.float64), rows["total"][mine].astype(np.float64)
        base = _base(rows[mine], e)
        if not _starts_again(rows[mine], e, n, base):
            continue
        if (total > 0).all():
            length = total
        else:
            length = np.full(len(mine), _learnt_length(e, n))
            notes.append(f"the counter starts again in every epoch; an epoch was taken to have {int(length[0])} of its steps, the most seen in one")
        if (flags[mine] & SAMPLES).any():
            notes.append("steps count samples, as printed")
        step[mine] = np.clip(np.round((e - base) * length + n), -(2.0**62), 2.0**62).astype(np.int64)
        main = float(np.median(length))
        lengths[int(rows["dialect"][mine[0]])] = (base, main)
        _evaluations(rows, epoch, held_out, step, exact, base, main, int(rows["dialect"][mine[0]]))
    return step, exact


def _base(rows: Table, epoch: NDArray[np.float64]) -> float:
    told = rows["base"][rows["base"] >= 0]
    if len(told):
        return float(told[0])
    first = float(np.floor(epoch.min()))
    if first <= 1:
        return first
    return 1.0 if (rows["epochs"] > 0).any() else 0.0


def _starts_again(rows: Table, epoch: NDArray[np.float64], n: NDArray[np.float64], base: float) -> bool:
    """Whether the counter counts within an epoch: it falls where the epoch rises."""
    order = np.argsort(rows["rank"], kind="stable")
    e, k, rank = epoch[order], n[order], rows["rank"][order]
    rises = (e[1:] > e[:-1]) & (rank[1:] == rank[:-1])
    if rises.any():
        return bool((k[1:][rises] <= k[:-1][rises]).mean() > 0.5)
    told = bool((rows["base"] >= 0).any())
    total = rows["total"]
    own = not np.isnan(rows["epoch"]).any()
    return bool(own and (total > 0).all() and (told or (rows["level"] <= 2).all()) and (k <= total[order]).all())


def _learnt_length(epoch: NDArray[np.float64], n: NDArray[np.float64]) -> float:
    last = epoch.max()
    done = n[epoch < last]
    longest = float(done.max() if len(done) else n.max())
    gaps = np.diff(np.unique(n))
    lowest = float(n.min())
    if lowest == 0 and len(gaps):  # counted from 0: one interval more
        longest += float(np.median(gaps))
    return max(longest, 1.0)


def _evaluations(
    rows: Table,
    epoch: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    step: NDArray[np.int64],
    exact: NDArray[np.bool_],
    base: float,
    length: float,
    dialect: int,
) -> None:
    """Evaluations of an epoch belong to its end, though not behind the training that follows."""
    mine = np.flatnonzero(held_out & ~np.isnan(epoch) & (rows["dialect"] == dialect))
    if not len(mine):
        return
    end = np.round((epoch[mine] - base + 1) * length).astype(np.int64)
    named = np.flatnonzero(exact)
    after = np.searchsorted(named, mine)
    following = step[named[np.minimum(after, len(named) - 1)]]
    behind = (after < len(named)) & (following >= step[named[np.maximum(after - 1, 0)]])
    step[mine] = np.where(behind, np.minimum(end, following), end)
    exact[mine] = True


def _from_bars(rows: Table, step: NDArray[np.int64], exact: NDArray[np.bool_], notes: list[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows with a fraction of an epoch between states of a bar (transformers' Trainer).

    The state before may lag, the one after may belong to the next print. The epoch, rounded as printed, times
    the steps of an epoch decides; these are the ones for which most rows agree with a neighbouring state.
    """
    flags = rows["flags"]
    if not (flags & BAR).any():
        return step, exact
    plain = (flags & BAR) == 0
    asking = np.flatnonzero(~exact & plain & (rows["count"] > 0) & ((flags & FRACTIONAL) > 0))
    bars = np.flatnonzero(((flags & BAR) > 0) & (rows["count"] == 0) & (rows["total"] > 1) & np.isnan(rows["epoch"]))
    if not len(asking) or not len(bars):
        return step, exact
    before_any = np.searchsorted(bars, asking) - 1
    near = np.concatenate([bars[np.clip(before_any, 0, None)], bars[np.clip(before_any + 1, None, len(bars) - 1)]])
    totals, votes = np.unique(rows["total"][near], return_counts=True)
    # an evaluation's bar stands beside its rows too: the training's bar is the one that most rows are beside, the longer one in doubt
    total = int(totals[np.lexsort((totals, votes))[-1]])
    bars = bars[rows["total"][bars] == total]
    shown = step[bars].astype(np.float64)
    k = np.searchsorted(bars, asking)
    prev = np.where(k > 0, shown[np.maximum(k - 1, 0)], 0.0)
    following = np.where(k < len(bars), shown[np.minimum(k, len(bars) - 1)], np.nan)
    epoch = rows["epoch"][asking]
    half = _rounding(epoch)
    best: tuple[int, float] = (-1, 1.0)
    for guess in (prev, following):
        ok = (guess > 0) & (epoch > 0)
        if not ok.any():
            continue
        candidates = {
            float(np.median(guess[ok] / epoch[ok])),
            float(guess[ok][-1] / epoch[ok][-1]),
            float(guess[ok].max() / epoch[ok][np.argmax(guess[ok])]),
        }
        for around in candidates:
            epochs = max(float(np.round(total / around)), 1.0)
            for length in (total / epochs, around, float(np.round(around))):
                agree = int((np.abs(epoch * length - guess) <= half * length + 0.51)[ok].sum())
                if agree > best[0]:
                    best = (agree, length)
    length = best[1]
    low, high = np.maximum(epoch - half, 0) * length - 0.5, (epoch + half) * length + 0.5
    with np.errstate(invalid="ignore"):
        fits_next = (following >= low) & (following <= high)
    fits_prev = (prev >= low) & (prev <= high)
    computed = np.round(epoch * length)
    sure = (high - low) < 2  # the epoch alone names one step
    found = np.where(sure, computed, np.where(fits_prev, prev, np.where(fits_next, following, computed)))
    # a summary is printed with the last step
    found = np.clip(found, 0, total)
    step[asking] = found.astype(np.int64)
    exact = exact.copy()
    exact[asking] = True
    notes.append(f"steps from the bar of {total} and the printed epoch, {length:g} steps each")
    return step, exact


def _rounding(epoch: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half a unit in the last place printed: two decimals if all of them have at most two, else four digits."""
    if (np.abs(epoch * 100 - np.round(epoch * 100)) < 1e-6).all():
        return np.full(len(epoch), 0.005)
    return 0.5 * 10.0 ** (np.floor(np.log10(np.maximum(epoch, 1e-9))) - 3)


def _carried(rows: Table, step: NDArray[np.int64], exact: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The step of each row; those without one get the last one of their rank, else of any."""
    step = step.copy()
    asking = np.flatnonzero(~exact)
    if not len(asking):
        return step
    rank = rows["rank"][asking]
    for r in np.unique(rank):
        mine = asking[rank == r]
        named = np.flatnonzero(exact & (rows["rank"] == r)) if r != -1 else asking[:0]
        if not len(named):
            named = np.flatnonzero(exact)
        before = np.searchsorted(named, mine)
        step[mine] = np.where(before > 0, step[named[np.maximum(before - 1, 0)]], NO_STEP) if len(named) else NO_STEP
    return step


def _implausible(
    rows: Table,
    codes: NDArray[np.int32],
    cells: _Cells,
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


def _repeated(codes: NDArray[np.int32], keep: NDArray[np.bool_], tags: list[str], skipped: dict[str, int]) -> NDArray[np.bool_]:
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
    rows: Table, owner: NDArray[np.int32], codes: NDArray[np.int32], values: NDArray[np.float64], keep: NDArray[np.bool_], tags: list[str]
) -> NDArray[np.int64] | None:
    """The step of each row by an unknown whole number that rises in almost every row; None where there is none."""
    if not keep.any():
        return None
    most = int(np.bincount(codes[keep]).max())
    first = np.ones(len(codes), bool)
    first[1:] = owner[1:] != owner[:-1]  # it stands first in its row
    for code in np.unique(codes[keep & first]):
        mine = np.flatnonzero(keep & (codes == code))
        v = values[mine]
        if len(v) < max(4, 0.9 * most) or role_of(tags[code]) is not None or not np.isfinite(v).all() or (v != np.floor(v)).any():
            continue
        if (np.abs(v) < 2**53).all() and (np.diff(v) > 0).mean() > 0.9 and not (np.diff(v) == 0).any():
            step = np.full(len(rows), NO_STEP)
            step[owner[mine]] = v.astype(np.int64)
            return step
    return None


def _cycles(owner: NDArray[np.int32], codes: NDArray[np.int32], keep: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
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


def _held_out(codes: NDArray[np.int32], tags: list[str]) -> tuple[NDArray[np.int32], list[str]]:
    """Names the values of evaluations: by their split where they would pass for the training's."""
    if not any(t[0] in (HELD, HELD_BARE) for t in tags if t):
        return codes, tags
    plain = set(tags)
    final: dict[str, int] = {}
    map_ = np.empty(len(tags), np.int32)
    for i, tag in enumerate(tags):
        if tag[:1] in (HELD, HELD_BARE):
            split, _, name = tag[1:].partition(HELD)
            mistaken = name in plain or (tag[0] == HELD and role_of(name) in ("loss", "perplexity"))
            tag = f"{split} {name}" if mistaken else name
        map_[i] = final.setdefault(tag, len(final))
    return map_[codes], list(final)


def _maybe(
    codes: NDArray[np.int32], keep: NDArray[np.bool_], tags: list[str], notes: list[str]
) -> tuple[NDArray[np.bool_], NDArray[np.int32], list[str]]:
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
        codes = np.where(mine, real, codes).astype(np.int32)
    return keep, codes, tags


def _again(
    rows: Table,
    cells: _Cells,
    codes: NDArray[np.int32],
    values: NDArray[np.float64],
    step: NDArray[np.int64],
    keep: NDArray[np.bool_],
    tags: list[str],
    skipped: dict[str, int],
) -> NDArray[np.bool_]:
    """True for values that repeat the one before of the same tag and rank: the same step and number, perhaps rounded, or carried over by a bar."""
    again = np.zeros(len(codes), bool)
    flags = rows["flags"]
    repeated = 0
    for a, b, of_a, of_b in _pairs_by_tag(rows["rank"], codes, cells, _twice_at_a_step(rows, step, codes, cells, len(tags)), keep, len(tags)):
        once = np.flatnonzero((step[of_a] == step[of_b]) & (of_a != of_b))
        x, y = values[a[once]], values[b[once]]
        found = b[once[_equal(x, y) | _rounded(x, y)]]
        again[found] = True
        repeated += len(found)
    if repeated:
        skipped["repeated prints of the same number"] = repeated
    if (flags & BAR).any():
        slow = np.array([_carried_over(t) for t in tags], bool)
        carried = 0
        for a, b, _, of_b in _pairs_by_tag(rows["rank"], codes, cells, np.flatnonzero(slow[codes]), keep, len(tags)):
            found = b[((flags[of_b] & BAR) > 0) & _equal(values[a], values[b]) & ~again[b]]
            again[found] = True
            carried += len(found)
        if carried:
            skipped["carried-over values of a bar"] = carried
    return again


def _twice_at_a_step(rows: Table, step: NDArray[np.int64], codes: NDArray[np.int32], cells: _Cells, n_tags: int) -> NDArray[Any]:
    """Indices of the values whose tag comes twice in rows of one rank and step that follow one another, and of a few more."""
    index = np.flatnonzero(rows["count"])
    rank = rows["rank"][index]
    if len(rank) and (rank != rank[0]).any():
        order = np.argsort(rank, kind="stable")
        index, rank = index[order], rank[order]
    at = step[index]
    new = np.ones(len(index) + 1, bool)
    new[1:-1] = (rank[1:] != rank[:-1]) | (at[1:] != at[:-1])
    beside = ~(new[:-1] & new[1:])
    group, index = np.cumsum(new[:-1])[beside], index[beside]
    found: list[NDArray[Any]] = [index[:0]]
    start = 0
    while start < len(index):
        last = group[min(start + _ROWS_AT_ONCE, len(index)) - 1]
        end = int(np.searchsorted(group, last, side="right"))
        some = cells.of(index[start:end])
        slot = np.repeat(group[start:end] - group[start], cells.count[index[start:end]]) * n_tags + codes[some]
        slot %= _SLOTS
        found.append(some[np.bincount(slot)[slot] > 1])
        start = end
    return np.concatenate(found)


def _pairs_by_tag(
    rank: NDArray[np.int16], codes: NDArray[np.int32], cells: _Cells, index: NDArray[Any], keep: NDArray[np.bool_], n_tags: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.intp], NDArray[np.intp]]]:
    """The kept ones of some values, in pairs that follow one another in their tag and rank, some tags at a time.

    `index` says which values. Yields (the earlier, the later, the row of either).
    """
    code = codes[index]
    turn = (np.cumsum(np.bincount(code, minlength=n_tags)) // _AT_ONCE).astype(np.uint16)
    turns = turn[code] if n_tags else code
    for t in np.flatnonzero(np.bincount(turn)):
        mine = index[turns == t] if turn[-1] else index
        mine = mine[keep[mine]]
        owner = cells.owner_of(mine)
        tag, rank_ = codes[mine], rank[owner]
        order = np.argsort(rank_, kind="stable") if len(rank_) and (rank_ != rank_[0]).any() else None
        # numpy sorts short numbers by counting
        by_tag = np.argsort((tag if order is None else tag[order]).astype(np.uint16 if n_tags < 65_536 else np.int32), kind="stable")
        order = by_tag if order is None else order[by_tag]
        tag, rank_ = tag[order], rank_[order]
        same = np.flatnonzero((tag[1:] == tag[:-1]) & (rank_[1:] == rank_[:-1]))
        mine, owner = mine[order], owner[order]
        yield mine[same], mine[same + 1], owner[same], owner[same + 1]


def _equal(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (x == y) | (np.isnan(x) & np.isnan(y))
    return same


def _rounded(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether one number is the other with fewer decimals, or with six digits."""
    out = np.zeros(len(x), bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        close = np.flatnonzero((x != y) & (np.abs(x - y) <= 0.02 * np.maximum(np.abs(x), np.abs(y))))
        u, v = x[close], y[close]
        for digits in range(7):
            half = 0.5000001 * 10.0**-digits  # a printed half may be rounded either way
            out[close] |= (np.abs(u - v) <= half) & ((np.round(u, digits) == u) | (np.round(v, digits) == v))
        scale = 10.0 ** (5 - np.floor(np.log10(np.abs(u))))
        out[close] |= np.isclose(np.round(u * scale), np.round(v * scale), rtol=1e-12, atol=0) & np.isclose(u, v, rtol=1e-5)
    return out


def _carried_over(tag: str) -> bool:
    """A bar repeats these until the next evaluation or epoch."""
    name = tag.lower()
    return name.endswith("_epoch") or (role_of(tag) or "").startswith("val_") or any(w in name for w in ("val_", "valid", "eval", "test_", "val/"))
