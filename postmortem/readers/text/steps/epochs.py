"""Global steps from positions within an epoch and from the bars around a row, over the whole file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct, occurrences
from postmortem.core.stats import median
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.steps.row_store import BAR, EVALUATION, FRACTIONAL, NO_STEP, SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import StoredRows

_FAR_OVER = 1.1
"""A counter beyond its printed total by more than this factor shows that the total is not the length of an epoch. One
that is a little beyond it belongs to a total that was computed or rounded."""


_FEW_BEYOND = 0.1
"""Share of rows that a wrong guess of an epoch's length may put beyond the bar beside them."""
_MOST, _CLOSE = 0.5, 0.1
"""Fewer rows than this share that agree with a state of the bar come of buffered output; what is close to a whole
number of epochs then is one."""
_MANY_EPOCHS = 1_000_000
"""More epochs than this are a number of another kind."""
_SHOWN_MOVES, _FALLS = 10, 0.3
"""So many moves of a number within epochs, of which more than this share go back, show that it counts nothing."""
_FEWEST_SPACED, _NEARLY_ALL = 5, 0.95
"""So many rows, nearly all of which fit, are evenly spaced."""


def carried_epoch(rows: StoredRows) -> NDArray[np.float64]:
    """The epoch of each row; after a header row (an epoch and nothing else) the last one named on its rank;
    float64[rows]."""
    epoch: NDArray[np.float64] = rows["epoch"]
    if np.isnan(epoch).all():
        return epoch
    epoch = epoch.copy()
    header = ~np.isnan(epoch) & (rows["count"] == 0) & (rows["flags"] & BAR == 0) & (rows["step"] == NO_STEP)
    if header.any():
        for rank in distinct(rows["rank"]):
            mine = np.flatnonzero(rows["rank"] == rank)
            if not header[mine].any():
                continue
            named = ~np.isnan(epoch[mine])
            last = np.maximum.accumulate(np.where(named, np.arange(len(mine)), -1))
            blank = ~named & np.logical_or.accumulate(header[mine])
            epoch[mine[blank]] = rows["epoch"][mine[last[blank]]]
    return epoch


def epoch_ends(epoch: NDArray[np.float64], step: NDArray[np.int64]) -> dict[int, int]:
    """The last step of each epoch, from rows that know both; `epoch` float64[rows], `step` int64[rows]."""
    known = ~np.isnan(epoch) & (step != NO_STEP)
    whole = np.floor(epoch[known]).astype(np.int64)
    epochs = distinct(whole)
    last = np.full(len(epochs), NO_STEP)
    np.maximum.at(last, np.searchsorted(epochs, whole), step[known])
    return dict(zip(epochs.tolist(), last.tolist(), strict=True))


def family(rows: StoredRows) -> NDArray[np.int16]:
    """A number for the way in which each row prints its counter: rows of one family count the same thing."""
    found: NDArray[np.int16] = rows["dialect"].astype(np.int16) * np.int16(64)
    found += rows["level"] * np.int8(4)
    found += (rows["total"] > 0) * np.int8(2)
    found += (rows["flags"] & BAR) > 0
    return found


def global_steps(rows: StoredRows, notes: list[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Steps that rows name, with positions within an epoch made global: (step, whether the row names one)."""
    step = rows["step"]
    flags = rows["flags"]
    held_out = (flags & EVALUATION) > 0
    exact = (step != NO_STEP) & ~held_out
    epoch = carried_epoch(rows)
    within = exact & ~np.isnan(epoch) & (rows["level"] < Trust.GLOBAL)
    if not within.any():
        return step, exact
    step = step.copy()
    kinds = _beyond_total(rows, family(rows), within)
    for kind in distinct(kinds[within]):
        mine = np.flatnonzero(within & (kinds == kind))
        e, n, total = epoch[mine], step[mine].astype(np.float64), rows["total"][mine].astype(np.float64)
        base = _base(rows[mine], e)
        if not _starts_again(rows[mine], e, n):
            continue
        if _without_order(rows["rank"][mine], e, n):
            exact[mine] = False
            notes.append("numbers that look like steps are in no order within an epoch: they are not used")
            continue
        if (total > 0).all() and (n <= _FAR_OVER * total).all():
            length = total
        else:
            length = np.full(len(mine), _learnt_length(e, n))
            notes.append(
                f"the step counter restarts in each epoch; an epoch is assumed to have {int(length[0])} steps, "
                "the most seen in one epoch"
            )
        if (flags[mine] & SAMPLES).any():
            notes.append("steps are numbers of samples, as printed")
        begins = _begins(e, length, base)
        step[mine] = np.clip(np.round(begins + n), -(2.0**62), 2.0**62).astype(np.int64)
        main = median(length)
        _evaluations(rows, epoch, held_out, step, exact, base, main, int(rows["dialect"][mine[0]]))
    return step, exact


def _begins(epoch: NDArray[np.float64], length: NDArray[np.float64], base: float) -> NDArray[np.float64]:
    """How many steps come before the epoch of each row: as many as all earlier epochs have.

    Epochs may differ in length, as those of samplers that draw anew; one that no row shows has the usual length.
    """
    usual = (epoch - base) * length
    numbers = distinct(epoch)
    if (numbers != np.floor(numbers)).any() or numbers[0] < base or numbers[-1] - base > _MANY_EPOCHS:
        return usual
    order = np.lexsort((length, epoch))
    changes = np.flatnonzero(np.diff(epoch[order]) == 0)
    if (np.diff(length[order])[changes] != 0).any():
        return usual  # another start of the program, with batches of another size
    lengths = np.full(int(numbers[-1] - base) + 1, median(length))
    lengths[(epoch - base).astype(np.intp)] = length
    before: NDArray[np.float64] = np.cumsum(lengths) - lengths
    return before[(epoch - base).astype(np.intp)]


def _beyond_total(rows: StoredRows, kinds: NDArray[np.int16], within: NDArray[np.bool_]) -> NDArray[np.int16]:
    """The kinds, states of a bar that ran beyond its total, which it no longer shows then, being of the same kind."""
    bars = np.flatnonzero(within & (rows["flags"] & BAR > 0))
    open_end = rows["total"][bars] <= 0
    if not open_end.any() or open_end.all():
        return kinds
    known, beyond = bars[~open_end], bars[open_end]
    if rows["step"][beyond].min() <= rows["total"][known].max():
        return kinds
    kinds = kinds.copy()
    kinds[known] = np.where(np.isin(kinds[known] - 2, kinds[beyond]), kinds[known] - 2, kinds[known])
    return kinds


def _base(rows: StoredRows, epoch: NDArray[np.float64]) -> float:
    """The number of the first epoch."""
    known = rows["base"][rows["base"] >= 0]
    first = float(np.floor(epoch.min()))
    if len(known):
        return min(float(known[0]), max(first, 0.0))  # a program of one's own may print as one that counts from 1
    if first <= 1:
        return first
    return 1.0 if (rows["epochs"] > 0).any() else 0.0


def _starts_again(rows: StoredRows, epoch: NDArray[np.float64], n: NDArray[np.float64]) -> bool:
    """Whether the counter counts within an epoch: it falls when the epoch rises.

    One that stands still or rises then, but never falls, is rounded (``step:1K``)."""
    e, k, rank, total = epoch, n, rows["rank"], rows["total"]
    if (rank != rank[0]).any():
        order = np.argsort(rank, kind="stable")
        e, k, rank, total = epoch[order], n[order], rank[order], total[order]
    rises = (e[1:] > e[:-1]) & (rank[1:] == rank[:-1])
    if rises.any():
        before, after = k[:-1][rises], k[1:][rises]
        rounded = (after > before).any() and not (after < before).any()
        return bool((after <= before).mean() > 0.5) and not rounded
    has_base = bool((rows["base"] >= 0).any())
    own = not np.isnan(rows["epoch"]).any()
    return bool(own and (total > 0).all() and (has_base or (rows["level"] <= Trust.STEP).all()) and (k <= total).all())


def _without_order(rank: NDArray[np.int16], epoch: NDArray[np.float64], n: NDArray[np.float64]) -> bool:
    """Whether a number neither rises within an epoch nor, on the whole, grows with the lines: the code of a thing.

    Lines of several ranks come in some disorder, but theirs grow.
    """
    same = (epoch[1:] == epoch[:-1]) & (rank[1:] == rank[:-1])
    moves = np.diff(n)[same]
    moves = moves[moves != 0]
    if len(moves) < _SHOWN_MOVES or (moves < 0).mean() <= _FALLS:
        return False
    numbers, _, count = occurrences(epoch)
    group = np.searchsorted(numbers, epoch)
    own = n - (np.bincount(group, n) / count)[group]
    place = np.arange(len(n), dtype=np.float64)
    place -= (np.bincount(group, place) / count)[group]
    return bool(own @ place <= 0.5 * np.sqrt((own @ own) * (place @ place)))


def _learnt_length(epoch: NDArray[np.float64], n: NDArray[np.float64]) -> float:
    """The length of an epoch whose total is not printed, or is exceeded: the longest finished one."""
    last = epoch.max()
    done = n[epoch < last]
    longest = float(done.max() if len(done) else n.max())
    gaps = np.diff(distinct(n))
    lowest = float(n.min())
    if lowest == 0 and len(gaps):  # counted from 0, so one interval more
        longest += median(gaps)
    return max(longest, 1.0)


def _evaluations(
    rows: StoredRows,
    epoch: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    step: NDArray[np.int64],
    exact: NDArray[np.bool_],
    base: float,
    length: float,
    dialect: int,
) -> None:
    """Place evaluations at the end of their epoch, but not after the training that follows; in place."""
    mine = np.flatnonzero(held_out & ~np.isnan(epoch) & (rows["dialect"] == dialect))
    if not len(mine):
        return
    end = np.round((epoch[mine] - base + 1) * length).astype(np.int64)
    named = np.flatnonzero(exact)
    after = np.searchsorted(named, mine)
    following = step[named[np.minimum(after, len(named) - 1)]]
    is_followed = (after < len(named)) & (following >= step[named[np.maximum(after - 1, 0)]])
    step[mine] = np.where(is_followed, np.minimum(end, following), end)
    exact[mine] = True


def only_bars_again(rows: StoredRows, exact: NDArray[np.bool_]) -> bool:
    """Whether nothing but bars counts, and the longest of them starts again: their states place no other rows."""
    counted = np.flatnonzero(exact)
    if not (rows["flags"][counted] & BAR).all():
        return False
    total = rows["total"][counted]
    longest = rows["step"][counted[total == total.max()]]
    return bool((np.diff(longest) < 0).any())


def from_bars(
    rows: StoredRows, step: NDArray[np.int64], exact: NDArray[np.bool_], notes: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Steps of rows with a fraction of an epoch between states of a bar (transformers' Trainer).

    The state before may lag and the one after may belong to the next print. The epoch, rounded as printed, times the
    steps of an epoch decides: the length for which most rows agree with a neighbouring state.
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
    totals, _, votes = occurrences(rows["total"][near])
    # an evaluation's bar is beside its rows too: that of the training has the most rows beside it, or is longer
    total = int(totals[np.lexsort((totals, votes))[-1]])
    bars = bars[rows["total"][bars] == total]
    shown = step[bars].astype(np.float64)
    k = np.searchsorted(bars, asking)
    prev = np.where(k > 0, shown[np.maximum(k - 1, 0)], 0.0)
    following = np.where(k < len(bars), shown[np.minimum(k, len(bars) - 1)], np.nan)
    epoch = rows["epoch"][asking]
    half = _rounding(epoch)
    length = _epoch_length(total, epoch, half, (prev, following), np.fmax(prev, following))
    low, high = np.maximum(epoch - half, 0) * length - 0.5, (epoch + half) * length + 0.5
    with np.errstate(invalid="ignore"):
        fits_next = (following >= low) & (following <= high)
    fits_prev = (prev >= low) & (prev <= high)
    computed = np.round(epoch * length)
    sure = (high - low) < 2  # the epoch alone determines the step
    found = np.where(sure, computed, np.where(fits_prev, prev, np.where(fits_next, following, computed)))
    # a summary is printed with the last step
    found = np.clip(_spaced(found, high - computed, rows["count"][asking]), 0, total)
    step, exact = step.copy(), exact.copy()
    step[asking] = found.astype(np.int64)
    exact[asking] = True
    notes.append(
        f"steps are computed from the progress bar of {total} and the printed epoch, {length:g} steps per epoch"
    )
    return step, exact


def _epoch_length(
    total: int,
    epoch: NDArray[np.float64],
    half: NDArray[np.float64],
    states: tuple[NDArray[np.float64], ...],
    latest: NDArray[np.float64],
) -> float:
    """The steps of an epoch for which most rows agree with a neighbouring state of the bar of `total` steps.

    `epoch` float64[n] is printed, `half` float64[n] half its last place, each of `states` float64[n] the step of a bar.
    No row is of a step beyond the `latest` state beside it, but many may be of earlier ones: of buffered output.
    """
    best: tuple[int, float] = (-len(epoch) - 1, 1.0)
    for guess in states:
        ok = (guess > 0) & (epoch > 0)
        if not ok.any():
            continue
        candidates = {
            median(guess[ok] / epoch[ok]),
            float(guess[ok][-1] / epoch[ok][-1]),
            float(guess[ok].max() / epoch[ok][np.argmax(guess[ok])]),
        }
        for around in candidates:
            epochs = max(float(np.round(total / around)), 1.0)
            for length in (total / epochs, around, float(np.round(around))):
                agree = int((np.abs(epoch * length - guess) <= half * length + 0.51)[ok].sum())
                beyond = int(((epoch - half) * length - 0.51 > latest).sum())
                agree -= len(epoch) if beyond > _FEW_BEYOND * len(epoch) else 0
                if agree > best[0]:
                    best = (agree, length)
    epochs = float(np.round(total / best[1]))
    if best[0] < _MOST * len(epoch) and epochs and abs(total / epochs / best[1] - 1) < _CLOSE:
        return total / epochs  # the output was buffered, so no state is that of its row
    return best[1]


def _spaced(step: NDArray[np.float64], within: NDArray[np.float64], count: NDArray[np.uint16]) -> NDArray[np.float64]:
    """The steps of rows that come every so many steps, as the rounding of their epochs hides; `within` float64[n].

    Rows of the most frequent number of values count. They are left alone unless nearly all of them are multiples of
    one number, which the rounding tells from its neighbours.
    """
    mine = np.flatnonzero(count == np.bincount(count).argmax())
    gaps = np.diff(step[mine])
    if len(mine) < _FEWEST_SPACED or not (gaps >= 0).all():
        return step
    every = float(np.round((step[mine[-1]] - step[mine[0]]) / (len(mine) - 1)))
    if every < 2:
        return step
    order = np.arange(len(mine))
    whole = every * (np.round(np.median(step[mine] / every - order)) + order)
    fits = np.abs(whole - step[mine]) <= within[mine] + 0.51
    if fits.mean() < _NEARLY_ALL:
        return step
    step = step.copy()
    step[mine[fits]] = whole[fits]
    return step


def _rounding(epoch: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half a unit in the last printed place: two decimals if no epoch has more, else four digits."""
    if (np.abs(epoch * 100 - np.round(epoch * 100)) < 1e-6).all():
        return np.full(len(epoch), 0.005)
    return 0.5 * 10.0 ** (np.floor(np.log10(np.maximum(epoch, 1e-9))) - 3)
