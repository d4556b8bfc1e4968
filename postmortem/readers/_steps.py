"""Which step a number belongs to: from positions as rows print them to one step axis for the file.

In order of trust: a step that the row names; a position within an epoch, made global with the length of an
epoch; the redrawn bar around the row; the last step named before; the epoch; the order of lines. All in numpy,
over the whole file at once, because one line cannot tell whether its counter starts again in every epoch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.reading import Points
from postmortem.core.roles import role_of
from postmortem.readers._miner import HELD_OUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.dialects import Record

NO_STEP = np.iinfo(np.int64).min
EVALUATION, BAR, WITHIN, SAMPLES, FRACTIONAL = 1, 2, 4, 8, 16
"""Flags of a row; WITHIN: its step is a position that may start again in every epoch."""
MAYBE, HELD, HELD_BARE = "\x00", "\x01", "\x02"
"""In front of a tag. MAYBE: NaN if earlier rows printed the tag, else nothing. HELD: an evaluation's value, followed
by its split word; it is put before the tag where the value would pass for the training's (a loss, or a tag
that training rows print, too); HELD_BARE: only where training rows print it."""

ROW = np.dtype(
    [
        ("line", np.uint32),
        ("rank", np.int16),
        ("wall_time", np.float64),
        ("step", np.int64),
        ("total", np.int32),
        ("epoch", np.float64),
        ("epochs", np.int32),
        ("level", np.int8),
        ("base", np.int8),
        ("flags", np.uint8),
        ("dialect", np.uint8),
        ("count", np.uint16),
    ]
)


class Track:
    """Everything that rows said, in order: one `ROW` each, and their values behind one another."""

    def __init__(self) -> None:
        self.tags: dict[str, int] = {}
        self._rows: list[NDArray[Any]] = []
        self._codes: list[NDArray[np.int32]] = []
        self._values: list[NDArray[np.float64]] = []
        self._pending: list[tuple[Any, ...]] = []
        self._pending_codes: list[int] = []
        self._pending_values: list[float] = []

    def code(self, tag: str) -> int:
        return self.tags.setdefault(tag, len(self.tags))

    def add(self, record: Record, line: int, rank: int, wall_time: float, dialect: int) -> None:
        values = record.values[:60_000]
        self._pending.append(row_of(record, line, rank, wall_time, dialect, len(values) + len(record.absent)))
        for value in values:
            self._pending_codes.append(self.code(stored(value.tag, record)))
            self._pending_values.append(value.number)
        for tag in record.absent:
            self._pending_codes.append(self.code(MAYBE + tag))
            self._pending_values.append(np.nan)

    def flush(self) -> None:
        if self._pending:
            self._rows.append(np.array(self._pending, ROW))
            self._codes.append(np.array(self._pending_codes, np.int32))
            self._values.append(np.array(self._pending_values, np.float64))
            self._pending, self._pending_codes, self._pending_values = [], [], []

    def extend(self, rows: NDArray[Any], codes: NDArray[np.int32], values: NDArray[np.float64]) -> None:
        """Whole arrays: rows of dtype `ROW`, and the codes and numbers of their values in the same order."""
        self.flush()
        self._rows.append(rows)
        self._codes.append(codes)
        self._values.append(values)

    def release(self) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float64]]:
        """Hands out everything as one array each, and forgets it; a part at a time, for these are large."""
        self.flush()
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, ROW)
        self._rows = []
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, np.int32)
        self._codes = []
        values = np.concatenate(self._values) if self._values else np.empty(0, np.float64)
        self._values = []
        return rows, codes, values


def stored(tag: str, record: Record) -> str:
    """The tag as the track keeps it: marked where it was measured on held-out data and does not say so."""
    if record.split.lower() in HELD_OUT and not HELD_OUT & set(re.split(r"[\W_]+", tag.lower())):
        return f"{HELD_BARE if record.own_names else HELD}{record.split}{HELD}{tag}"
    return tag


def row_of(record: Record, line: int, rank: int, wall_time: float, dialect: int, count: int) -> tuple[Any, ...]:
    """A record as one `ROW`."""
    flags = EVALUATION * record.evaluation | BAR * record.bar | SAMPLES * record.samples
    flags |= FRACTIONAL * (record.fractional or (record.epoch is not None and record.epoch != record.epoch // 1))
    step, total = NO_STEP, record.total
    if record.step is not None and (record.level > 1 or record.n is None):
        step = held(record.step)
        if record.level == 1:
            flags |= WITHIN
    elif record.n is not None:
        step = held(record.n)
        if record.level < 4:
            flags |= WITHIN
    return (
        line,
        rank if -1 <= rank < 32768 else -1,
        wall_time,
        step,
        -1 if total is None or not 0 < total < 2**31 else int(total),
        np.nan if record.epoch is None else record.epoch,
        -1 if record.epochs is None or not 0 < record.epochs < 2**31 else int(record.epochs),
        record.level,
        -1 if record.base is None else record.base,
        flags,
        dialect,
        count,
    )


def held(step: float) -> int:
    """A printed step inside int64."""
    return int(max(-(2.0**62), min(2.0**62, step)))


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
    rows["epoch"][~(np.abs(rows["epoch"]) < 2.0**40)] = np.nan  # of a damaged line
    keep_row = _last_states(rows)
    step, exact = _global_steps(rows, keep_row, notes)
    step, exact = _from_bars(rows, step, exact, notes)
    has_steps = bool((exact & (rows["count"] > 0)).any() or exact.sum() > 1)
    owner = np.repeat(np.arange(len(rows), dtype=np.int32), rows["count"])
    keep = keep_row[owner]
    axis = "step"
    if has_steps:
        step, at_row = _carried(rows, step, exact)
        epoch = _carried_epoch(rows)
        early = (step == NO_STEP) & (epoch == np.floor(epoch))  # an evaluation before the first step
        step[early] = epoch[early].astype(np.int64)
        stray = (step == NO_STEP)[owner]
        _count(skipped, "numbers printed before the first step", stray & keep)
        keep &= ~stray
        keep &= _plausible(rows, codes, owner, exact, keep, tags, step, epoch == np.floor(epoch), skipped)
    else:
        at_row = np.full(len(rows), NO_STEP)
        epoch = _carried_epoch(rows)
        whole = ~np.isnan(epoch) & (epoch == np.floor(epoch))
        if (whole & (rows["count"] > 0)).any() and not (~whole & ~np.isnan(epoch)).any():
            axis = "epoch"
            step = np.where(whole, epoch, 0).astype(np.int64)
            step = np.where(whole, step, NO_STEP)
            at_row = step
            keep &= (step != NO_STEP)[owner]
            notes.append("no step is printed: the epoch stands for it")
        elif (counter := _counter(rows, owner, codes, values, keep, tags)) is not None:
            step, at_row = _carried(rows, counter, counter != NO_STEP)
            keep &= (step != NO_STEP)[owner]
            notes.append("no step is named: a number that rises from row to row stands for it")
        else:
            axis = "row"
            keep &= _repeated(codes, keep, tags, skipped)
            step = _cycles(owner, codes, keep, len(rows))
            if keep.any():
                notes.append("no step is printed: the order of lines stands for it")
    keep, codes, tags = _maybe(codes, keep, tags, notes)
    if axis != "row":
        keep &= ~_again(rows, owner, codes, values, step, keep, tags, skipped)
    if not keep.all():
        owner, codes, values = owner[keep], codes[keep], values[keep]
    line, rank, wall_time = (np.ascontiguousarray(rows[name]) for name in ("line", "rank", "wall_time"))
    del rows, keep
    there = np.bincount(codes, minlength=len(tags)) > 0
    if not there.all():
        codes = (np.cumsum(there) - 1).astype(np.int32)[codes]
    points = Points([t for t, used in zip(tags, there, strict=True) if used], codes, step[owner], values, wall_time[owner], rank[owner])
    return Resolved(points, line, rank, at_row, axis, notes, skipped)


def _count(skipped: dict[str, int], what: str, mask: NDArray[np.bool_]) -> None:
    if n := int(mask.sum()):
        skipped[what] = skipped.get(what, 0) + n


def _last_states(rows: NDArray[Any]) -> NDArray[np.bool_]:
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


def _carried_epoch(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The epoch of a row, or of the header row (an epoch and nothing else) before it on its rank."""
    epoch = rows["epoch"].copy()
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


def _global_steps(rows: NDArray[Any], keep: NDArray[np.bool_], notes: list[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Steps that rows name, positions within an epoch made global -> (step, whether the row names one)."""
    step = rows["step"].copy()
    flags = rows["flags"]
    held_out = (flags & EVALUATION) > 0
    exact = (step != NO_STEP) & ~held_out
    epoch = _carried_epoch(rows)
    within = exact & ~np.isnan(epoch) & (rows["level"] < 4)
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


def _base(rows: NDArray[Any], epoch: NDArray[np.float64]) -> float:
    told = rows["base"][rows["base"] >= 0]
    if len(told):
        return float(told[0])
    first = float(np.floor(epoch.min()))
    if first <= 1:
        return first
    return 1.0 if (rows["epochs"] > 0).any() else 0.0


def _starts_again(rows: NDArray[Any], epoch: NDArray[np.float64], n: NDArray[np.float64], base: float) -> bool:
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
    rows: NDArray[Any],
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


def _from_bars(
    rows: NDArray[Any], step: NDArray[np.int64], exact: NDArray[np.bool_], notes: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows with a fraction of an epoch between states of a bar (transformers' Trainer).

    The state before may lag, the one after may belong to the next print. The epoch, rounded as printed, times
    the steps of an epoch decides; these are the ones for which most rows agree with a neighbouring state.
    """
    flags = rows["flags"]
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


def _carried(rows: NDArray[Any], step: NDArray[np.int64], exact: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows without a step get the last one of their rank, else of any -> (step, the step known at each row)."""
    at_row = np.full(len(rows), NO_STEP)
    index = np.arange(len(rows))
    last = np.maximum.accumulate(np.where(exact, index, -1))
    anyone = np.where(last >= 0, step[np.maximum(last, 0)], NO_STEP)
    ranks = np.unique(rows["rank"])
    if len(ranks) == 1:
        at_row = anyone
    else:
        for rank in ranks:
            mine = np.flatnonzero(rows["rank"] == rank)
            if rank == -1 or not exact[mine].any():
                at_row[mine] = anyone[mine]
                continue
            last = np.maximum.accumulate(np.where(exact[mine], np.arange(len(mine)), -1))
            at_row[mine] = np.where(last >= 0, step[mine[np.maximum(last, 0)]], NO_STEP)
    return np.where(exact, step, at_row), at_row


def _plausible(
    rows: NDArray[Any],
    codes: NDArray[np.int32],
    owner: NDArray[np.int32],
    exact: NDArray[np.bool_],
    keep: NDArray[np.bool_],
    tags: list[str],
    step: NDArray[np.int64],
    placed: NDArray[np.bool_],
    skipped: dict[str, int],
) -> NDArray[np.bool_]:
    """Values of rows without a step count where their tag is a known quantity or comes back.

    Between the last step of an attempt and the first of the next stands the configuration of the new one:
    there only tags count that are printed elsewhere between steps, too.
    """
    filled = rows["count"] > 0
    own_row = exact | placed
    named = np.flatnonzero(exact & filled)
    if not (~own_row & filled).any() or not len(named):
        return np.ones(len(codes), bool)
    own = own_row[owner]
    loose = ~own & keep
    following = np.cumsum(exact & filled)  # how many named rows there are up to each row: where the next stands among them
    ahead = np.where(following < len(named), step[named[np.minimum(following, len(named) - 1)]], np.iinfo(np.int64).max)
    gap = (ahead < step)[owner]
    here = np.bincount(codes[loose & ~gap], minlength=len(tags))
    stepped = np.bincount(codes[own & keep], minlength=len(tags)) > 0
    known = np.array([n > 0 and role_of(t) is not None for t, n in zip(tags, here.tolist(), strict=True)], bool)
    fine = (here >= 3) | (known & (here > 0)) | (stepped & (here > 0))
    ok = own | fine[codes]
    _count(skipped, "numbers outside the training loop", loose & ~ok)
    return ok


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
    rows: NDArray[Any], owner: NDArray[np.int32], codes: NDArray[np.int32], values: NDArray[np.float64], keep: NDArray[np.bool_], tags: list[str]
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
    rows: NDArray[Any],
    owner: NDArray[np.int32],
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
    index = np.flatnonzero(keep & _beside_its_like(rows, step)[owner])
    if len(index):
        order, same = _by_tag(rows, owner, codes, index, len(tags))
        a, b = order[:-1][same], order[1:][same]
        once = (step[owner[a]] == step[owner[b]]) & (owner[a] != owner[b])
        a, b = a[once], b[once]
        repeated = b[_equal(values[a], values[b]) | _rounded(values[a], values[b])]
        again[repeated] = True
        if n := len(repeated):
            skipped["repeated prints of the same number"] = n
    if (flags & BAR).any():
        slow = np.array([_carried_over(t) for t in tags], bool)
        index = np.flatnonzero(keep & slow[codes])
        order, same = _by_tag(rows, owner, codes, index, len(tags))
        a, b = order[:-1][same], order[1:][same]
        over = b[((flags[owner[b]] & BAR) > 0) & _equal(values[a], values[b]) & ~again[b]]
        again[over] = True
        if n := len(over):
            skipped["carried-over values of a bar"] = n
    return again


def _beside_its_like(rows: NDArray[Any], step: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose neighbour, among the rows of their rank that have values, is of the same step."""
    out = np.zeros(len(rows), bool)
    index = np.flatnonzero(rows["count"])
    rank = rows["rank"][index]
    if len(rank) and (rank != rank[0]).any():
        order = np.argsort(rank, kind="stable")
        index, rank = index[order], rank[order]
    at = step[index]
    same = np.flatnonzero((rank[1:] == rank[:-1]) & (at[1:] == at[:-1]))
    out[index[same]] = out[index[same + 1]] = True
    return out


def _by_tag(
    rows: NDArray[Any], owner: NDArray[np.int32], codes: NDArray[np.int32], index: NDArray[np.intp], n_tags: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values sorted by tag and rank, in their order within -> (the values, whether the next one is of the same tag and rank)."""
    ranks, rank = _ranks(rows["rank"])
    small = n_tags * len(ranks) < 65_536
    kind: Any = np.uint16 if small else np.int64  # numpy sorts short ones by counting, and they are a quarter of the size
    key = codes[index].astype(kind) * kind(len(ranks)) + rank.astype(kind)[owner[index]]
    index = index.astype(np.int32) if len(codes) < 2**31 else index
    sort = np.argsort(key, kind="stable")
    key = key[sort]
    return index[sort], key[1:] == key[:-1]


def _ranks(rank: NDArray[np.int16]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranks there are, and for each row which of them."""
    there = np.zeros(65_536, bool)
    there[rank.astype(np.int64) + 1] = True
    found = np.flatnonzero(there) - 1
    return found, (np.cumsum(there) - 1)[rank.astype(np.int64) + 1]


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
