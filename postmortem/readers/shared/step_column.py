"""Finds the column of a table that counts the training steps."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core import languages
from postmortem.core.distinct import distinct, occurrences, without
from postmortem.core.stats import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Counted = tuple[str, NDArray[np.float64], NDArray[np.int64]]  # name, values, rows of impossible values

COUNTERS = (
    *("global_step", "num_updates", "total_timesteps", "timesteps_total", "global_iteration", "global_iter"),
    *(
        "completed_steps",
        "current_steps",
        "iteration",
        "iterations",
        "iter",
        "iters",
        "step",
        "steps",
        "update",
        "updates",
    ),
    *("training_iteration", "num_steps", "n_iter", "step_num", "train_step", "tick"),
    *("global_it", "gstep", "it", "itr", "upd", "optimizer_step", "opt_step", "env_step", "env_steps", "timestep"),
    *("timesteps", "num_iter", "num_update"),
    *languages.GLOBAL_STEPS,
    *languages.ITERATIONS,
    *languages.STEPS,
)
"""Names of counters, the most reliable first; case and groups in front ("trainer/", "train/") do not matter.

The order and the meaning hold for tables only: a checkpoint's `step` is more reliable than its `num_updates`, its `it`
counts the whole run, and `iterations` in a configuration is a total. So those have lists of their own.
"""
SURE = COUNTERS[:8]
"""Names that can only mean the whole run, even if the values go back often."""
WITHIN_EPOCH = (
    *("iteration", "iter", "iters", "step", "steps", "batch", "batch_idx", "batch_index", "it", "i", "local_step"),
    *languages.ITERATIONS,
    *languages.STEPS,
    *languages.BATCHES,
)
UNSURE = (*WITHIN_EPOCH, "round", "episode", "generation", "t", "k", "n")
"""Names that count the steps of a table without epochs if their values never fall, and rise in nearly every row."""
EPOCHS = ("epoch", "epochs", "current_epoch", "epoch_num", "ep", "cur_epoch", "epoch_idx", *languages.EPOCHS)
FEW = 4
"""A column with the same value in more rows than this is a setting, not a counter."""
LARGEST = 2**62
SHARE = 0.5
"""Least share of the rows that must have a cell in the column."""
_WRONG = 0.02
"""Largest share of impossible values in a counter (one is always allowed): they are damaged rows."""
_BACK = 0.1
"""The share of the rows in which the counter of a table that several programs write goes back."""
_NO_ROWS = np.empty(0, np.int64)

_GROUP = re.compile(r"^.*[/.]")


class Axis(NamedTuple):
    """The steps of n rows, `step` int64[n], from the column `name`.

    `columns` are those that are no metrics then, `note` is a sentence for people, `wrong` the indices of the rows
    without a possible step (negative, fractional, or too large). `shuffled`: the rows of the file are in any order.
    """

    name: str
    step: NDArray[np.int64]
    columns: tuple[str, ...]
    note: str
    wrong: NDArray[np.int64] = _NO_ROWS
    shuffled: bool = False


_FAR = 100
"""A value that is so many usual steps off its neighbours is damaged."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """A column's name without groups, in lower case and with underscores: "Trainer/Global Step" is "global_step"."""
    return re.sub(r"[\s\-]+", "_", languages.without_accents(_GROUP.sub("", name.strip().lower())))


def counter_names(names: Iterable[str]) -> list[str]:
    """The names that may count steps, the most reliable first."""
    return _named(names, COUNTERS)


def step_axis(
    columns: Mapping[str, NDArray[np.float64]],
    rank: NDArray[np.int16] | None = None,
    declared: Sequence[str] = (),
    torn: Sequence[int] = (),
    dense: Callable[[], bool] = bool,
) -> Axis | None:
    """The column that counts steps over the whole run, or a counter within epochs combined with the epoch.

    `columns` are float64[n], NaN if a row has no cell. `rank` int16[n] is the rank that wrote each row: every rank
    counts on its own. `declared` are columns that the writer declared as steps, asked first. `torn` are rows that are
    pieced together from damaged lines: their cells count only between those of their neighbours. `dense()`: whether a
    metric is logged in most rows. Returns None if no column counts steps; try `epoch_axis` then.
    """
    one_rank = rank is None or bool((rank == rank[:1]).all())
    candidates = [*(d for d in declared if d in columns), *counter_names(columns)]
    if candidates and one_rank and not len(torn) and _counts_plainly(columns[candidates[0]]):
        name = candidates[0]
        return Axis(name, columns[name].astype(np.int64), (name,), f"steps are taken from column {name!r}")
    rows = next((len(c) for c in columns.values()), 0)
    epoch = next((columns[name] for name in _named(columns, EPOCHS) if not np.isnan(columns[name]).all()), None)
    epochs = _filled(epoch) if epoch is not None else None
    for name in candidates:
        column, wrong = _without_wrong(columns[name], torn)
        restarts = 0.5 if plain(name) in SURE or name in declared else 0.02
        if _covers(column, rows) and _counts(column, epochs, rank, restarts):
            if one_rank and dense():
                name, column, wrong = _finer(columns, torn, (name, column, wrong))
            return Axis(name, _filled_int(column), (name,), f"steps are taken from column {name!r}", wrong)
    for name in _named(columns, WITHIN_EPOCH):
        if epoch is None or not _covers(columns[name], rows):
            continue
        if (axis := _axis_within_epochs(name, *_that_fit(columns[name], epoch, torn), rank)) is not None:
            return axis
    for name in _named(columns, UNSURE) if epochs is None else ():
        with np.errstate(invalid="ignore"):  # of two infinities
            rises = np.diff(columns[name])
        if _whole(columns[name]) and rows > FEW and (rises >= 0).all() and (rises > 0).mean() >= 0.99:
            return Axis(name, columns[name].astype(np.int64), (name,), f"steps are taken from column {name!r}")
    return None


def _axis_within_epochs(
    name: str,
    counter: NDArray[np.float64],
    epoch: NDArray[np.float64],
    wrong: NDArray[np.int64],
    rank: NDArray[np.int16] | None,
) -> Axis | None:
    """The steps by a counter that begins anew in each epoch; None if the two do not count steps."""
    inner, epochs = _filled(counter), _filled(epoch)
    if inner is None or epochs is None or not (_whole(inner) and _whole(epochs)):
        return None
    next_epoch = np.diff(epochs) > 0
    if next_epoch.any() and (np.diff(inner)[next_epoch] > 0).all() and _counts(counter, epochs, rank):
        return Axis(name, inner.astype(np.int64), (name,), f"steps are taken from column {name!r}", wrong)
    per_epoch = inner.max() + (inner.min() == 0)
    step = (epochs - (epochs.min() >= 1)) * per_epoch + inner
    fell, new_run = (np.diff(step) < 0).sum(), (np.diff(epochs) < 0).sum()
    if fell and (in_any_order := _shuffled(counter, epochs)) is not None:  # a restart repeats some pairs
        note = f"rows are in any order: sorted by epoch and {name!r}, with {per_epoch:.0f} per epoch"
        return Axis(name, in_any_order, (name,), note, wrong, shuffled=True)
    if step.max() < LARGEST and fell <= new_run:
        note = f"steps are taken from {name!r}, with {per_epoch:.0f} per epoch (the highest value logged)"
        return Axis(name, step.astype(np.int64), (name,), note, wrong)
    return None


def _finer(columns: Mapping[str, NDArray[np.float64]], torn: Sequence[int], found: Counted) -> Counted:
    """Another counter that is new in each row, where the one `found` counts rounds of several rows.

    Such as the `update` of a PPO log, whose `iter` stays while the policy is trained on what was collected in it.
    """
    known = found[1][~np.isnan(found[1])]
    if len(distinct(known)) * 2 > len(known):
        return found
    for name in counter_names(columns):
        column, wrong = _without_wrong(columns[name], torn)
        cells = column[~np.isnan(column)]
        if len(cells) >= len(known) and _whole(cells) and (np.diff(cells) > 0).all():
            return name, column, wrong
    return found


def _shuffled(inner: NDArray[np.float64], epochs: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The steps of rows in any order; None unless each pair of epoch and counter is there once, and epochs are alike.

    A row without the counter, such as one of held-out data, is at the end of its epoch.
    """
    known = ~np.isnan(inner)
    pairs = np.unique(np.stack([epochs[known], inner[known]]), axis=1)
    values = len(distinct(inner[known]))
    sizes = occurrences(pairs[0])[2]
    if pairs.shape[1] < np.count_nonzero(known) or len(sizes) < 2 or values < 2 or median(sizes) < 0.8 * values:
        return None
    per_epoch = inner[known].max() + (inner[known].min() == 0)
    step = (epochs - (epochs.min() >= 1)) * per_epoch + np.where(known, inner, per_epoch)
    return step.astype(np.int64) if step.max() < LARGEST else None


def epoch_axis(columns: Mapping[str, NDArray[np.float64]]) -> Axis | None:
    """Epochs as steps, for tables with one row per epoch; None if no column counts epochs."""
    for name in _named(columns, EPOCHS):
        if _covers(columns[name], len(columns[name])) and _counts(columns[name]):
            return Axis("epoch", _filled_int(columns[name]), (name,), f"steps are epochs, taken from column {name!r}")
    return None


def row_axis(rows: int) -> Axis:
    """Row numbers from 0, for tables in which no column counts."""
    return Axis(
        "row",
        np.arange(rows, dtype=np.int64),
        (),
        "no step column: rows are counted, from 0, and a row number is no step",
    )


def written_by_several(columns: Mapping[str, NDArray[np.float64]]) -> str:
    """The name of a counter that goes back all over a table and hardly ever to its start; "" if there is none.

    Several programs write to such a table at once, each with steps of its own: its order is no course of a training.
    """
    for name in counter_names(columns):
        known = columns[name][~np.isnan(columns[name])]
        fell = known[1:][np.diff(known) < 0] if _whole(known) else known[:0]
        if len(fell) > _BACK * len(known) and (fell > known.min()).mean() > 0.5:
            return name
    return ""


def _named(names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    place = _places(known)
    return sorted((n for n in names if plain(n) in place), key=lambda n: (place[plain(n)], n.count("/"), n))


@lru_cache(maxsize=16)
def _places(known: tuple[str, ...]) -> dict[str, int]:
    """Where in `known` each name is first."""
    return {name: i for i, name in reversed([*enumerate(known)])}


def _covers(column: NDArray[np.float64], rows: int) -> bool:
    return rows > 0 and bool(np.isfinite(column).sum() >= SHARE * rows)


def _without_wrong(
    column: NDArray[np.float64], torn: Sequence[int] = ()
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The column without its few impossible values, and their rows; unchanged if there are many."""
    known = ~np.isnan(column)
    out_of_place = np.zeros(len(column), bool)
    whole = without(np.flatnonzero(known), torn)
    for row in torn:
        before, after = column[whole[whole < row][-1:]], column[whole[whole > row][:1]]
        out_of_place[row] = known[row] and bool((before > column[row]).any() or (after < column[row]).any())
    wrong = np.flatnonzero(known & (_impossible(column) | out_of_place | _stray(column, known)))
    if not len(wrong) or len(wrong) > max(1, _WRONG * np.count_nonzero(known)):
        return column, _NO_ROWS
    column = column.copy()
    column[wrong] = np.nan
    return column, wrong


def _that_fit(
    counter: NDArray[np.float64], epoch: NDArray[np.float64], torn: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """A counter within epochs and the epochs, without both cells of the few rows that do not fit, and these rows.

    Such a row has a value that no counter has or that lies far off all others; or it stands between two rows of another
    epoch and repeats what a row of its own has, which rows in any order do not; or it is torn, and not in its place.
    """
    known = ~np.isnan(counter)
    at = np.flatnonzero(known)
    odd = known & (_impossible(counter) | _stray(counter, known) | _far_above(counter, known))
    before, own, after = (epoch[at[i : len(at) - 2 + i]] for i in range(3))
    between = at[1:-1][(before == after) & (own != before)]
    odd[between] |= _repeated(epoch, counter)[between]
    for row in torn:
        last, following = counter[at[at < row][-1:]], counter[at[at > row][:1]]
        odd[row] |= known[row] and bool((last > counter[row]).any() or (following < counter[row]).any())
    wrong = np.flatnonzero(odd)
    if not len(wrong) or len(wrong) > max(1, _WRONG * len(at)):
        return counter, epoch, _NO_ROWS
    counter, epoch = counter.copy(), epoch.copy()
    counter[wrong] = epoch[wrong] = np.nan
    return counter, epoch, wrong


def _repeated(epoch: NDArray[np.float64], counter: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The rows that have the epoch and the counter of another row."""
    order = np.lexsort((counter, epoch))
    before, after = order[:-1], order[1:]
    same = (epoch[before] == epoch[after]) & (counter[before] == counter[after])
    found = np.zeros(len(epoch), bool)
    found[before[same]] = found[after[same]] = True
    return found


def _far_above(column: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The values above a gap of many usual steps which no value fills."""
    values, moves = np.sort(column[known]), np.diff(column[known])
    if not (moves > 0).any():
        return np.zeros(len(column), bool)
    with np.errstate(invalid="ignore"):  # of two infinities
        gaps = np.flatnonzero(np.diff(values) > _FAR * median(moves[moves > 0]))
    return known & (column > values[gaps[0]]) if len(gaps) else np.zeros(len(column), bool)


def _stray(column: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Single values that lie far off while their neighbours count on from one another: damaged digits, no restart."""
    stray = np.zeros(len(column), bool)
    at = np.flatnonzero(known)
    if len(at) > FEW:
        before, value, after = (column[at[i : len(at) - 2 + i]] for i in range(3))
        moves = np.diff(column[at])
        usual = median(moves[moves > 0]) if (moves > 0).any() else np.inf
        apart = after - before
        off = np.maximum(value - after, before - value)
        stray[at[1:-1]] = (apart > 0) & (apart <= 2 * usual) & (off > _FAR * usual)
    return stray


def _whole(values: NDArray[np.float64]) -> bool:
    """Whether all values are possible counts: finite, not negative, whole."""
    return len(values) > 0 and not _impossible(values).any()


def _impossible(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The values that are no count, NaN included."""
    possible: NDArray[np.bool_] = (values >= 0) & (values < LARGEST) & (values == np.floor(values))
    return ~possible


def _counts_plainly(column: NDArray[np.float64]) -> bool:
    """Whether each row has a possible count above the one before: then no other question has to be asked."""
    rises = len(column) > 1 and column[0] >= 0 and column[-1] < LARGEST and bool((column[1:] > column[:-1]).all())
    return rises and bool((column == np.floor(column)).all())


def _counts(
    column: NDArray[np.float64],
    epochs: NDArray[np.float64] | None = None,
    rank: NDArray[np.int16] | None = None,
    restarts: float = 0.02,
) -> bool:
    """Whether a column counts: whole numbers that rise.

    They may go back with each epoch, and elsewhere in a share `restarts` of the rows, or once.
    """
    at = np.flatnonzero(~np.isnan(column))
    if rank is not None:
        at = at[np.argsort(rank[at], kind="stable")]
    values = column[at]
    if not _whole(values):
        return False
    moves = np.diff(values)
    if rank is not None:
        moves[np.diff(rank[at]) != 0] = 0
    fell = np.flatnonzero(moves < 0)
    if not moves.any():
        return len(values) <= FEW
    if not (moves > 0).any() or len(fell) > restarts * np.count_nonzero(moves) + 1:
        return False
    return not len(fell) or epochs is None or not (epochs[at[fell + 1]] > epochs[at[fell]]).all()


def _filled(column: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The column with absent cells filled from the row before, or at the start from after; None if all are absent."""
    known = ~np.isnan(column)
    if not known.any():
        return None
    return column[np.maximum.accumulate(np.where(known, np.arange(len(column)), int(np.argmax(known))))]


def _filled_int(column: NDArray[np.float64]) -> NDArray[np.int64]:
    filled = _filled(column)
    return np.empty(0, np.int64) if filled is None else filled.astype(np.int64)
