"""Which column of a table counts the training steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

COUNTERS = (
    *("global_step", "num_updates", "total_timesteps", "timesteps_total", "global_iteration", "global_iter", "iteration", "iterations"),
    *("iter", "iters", "current_steps", "step", "steps", "update", "updates", "training_iteration", "num_steps", "n_iter", "step_num", "train_step"),
)
"""Names of counters, the most telling first; groups in front ("trainer/", "train/") and case do not matter."""
SURE = COUNTERS[:6]
"""Names that can only mean the whole run: many restarts are no reason to doubt them."""
WITHIN_EPOCH = ("iteration", "iter", "iters", "step", "steps", "batch", "batch_idx", "batch_index", "it", "i", "local_step")
EPOCHS = ("epoch", "epochs", "current_epoch", "epoch_num")
FEW = 4
"""A column that stays the same in more rows than these is a setting, not a counter."""
LARGEST = 2**62
SHARE = 0.5
"""A column must stand in at least this part of the rows to be their axis."""
_WRONG = 0.02
"""Up to this part of the numbers of a counter, or one, may be impossible: damaged rows, which do not make it a different column."""
_NO_ROWS = np.empty(0, np.int64)

_GROUP = re.compile(r"^.*[/.]")


class Axis(NamedTuple):
    """The steps of n rows, int64[n], the column (or two) they come from, a sentence about it for people, and the rows
    whose number is no step (negative, broken, beyond all counting)."""

    name: str
    step: NDArray[np.int64]
    columns: tuple[str, ...]
    note: str
    wrong: NDArray[np.int64] = _NO_ROWS


def plain(name: str) -> str:
    """A column's name without groups, case, blanks and dashes: "Trainer/Global Step" is "global_step"."""
    return re.sub(r"[\s\-]+", "_", _GROUP.sub("", name.strip().lower()))


def counter_names(names: Iterable[str]) -> list[str]:
    """The names that may count steps, the most telling first."""
    return _named(names, COUNTERS)


def step_axis(columns: Mapping[str, NDArray[np.float64]], rank: NDArray[np.int16] | None = None, declared: str = "") -> Axis | None:
    """The column that counts steps over the whole run; or epoch and a counter that starts again with each, put together.

    `columns` are float64[n], NaN where a row has no such cell; `rank` int16[n] is who wrote each row: ranks count each
    for itself; `declared` is a column that the writer itself called the step. None where nothing counts; see
    `epoch_axis` then.
    """
    rows = next((len(c) for c in columns.values()), 0)
    epochs = next((e for name in _named(columns, EPOCHS) if (e := _filled(columns[name])) is not None), None)
    for name in [declared] * (declared in columns) + counter_names(columns):
        column, wrong = _without_wrong(columns[name])
        restarts = 0.2 if plain(name) in SURE or name == declared else 0.02
        if _covers(column, rows) and _counts(column, epochs, rank, restarts):
            return Axis(name, _filled_int(column), (name,), f"steps are the column {name!r}", wrong)
    for name in _named(columns, WITHIN_EPOCH):
        inner = _filled(columns[name]) if _covers(columns[name], rows) else None
        if epochs is None or inner is None or not (_whole(inner) and _whole(epochs)):
            continue
        per_epoch = inner.max() + (inner.min() == 0)
        step = (epochs - (epochs.min() >= 1)) * per_epoch + inner
        fell, new_run = (np.diff(step) < 0).sum(), (np.diff(epochs) < 0).sum()
        if step.max() < LARGEST and fell <= new_run:
            note = f"steps are {name!r}, with {per_epoch:.0f} to an epoch (the highest that was logged)"
            return Axis(name, step.astype(np.int64), (name,), note)
    return None


def epoch_axis(columns: Mapping[str, NDArray[np.float64]]) -> Axis | None:
    """Epochs as steps, for tables with one row per epoch."""
    for name in _named(columns, EPOCHS):
        if _covers(columns[name], len(columns[name])) and _counts(columns[name]):
            return Axis("epoch", _filled_int(columns[name]), (name,), f"steps are epochs, from the column {name!r}")
    return None


def row_axis(rows: int) -> Axis:
    """Row numbers, from 0, where nothing else counts."""
    return Axis("row", np.arange(rows, dtype=np.int64), (), "no column counts steps: steps are row numbers, from 0")


def _named(names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    return sorted((n for n in names if plain(n) in known), key=lambda n: (known.index(plain(n)), n.count("/"), n))


def _covers(column: NDArray[np.float64], rows: int) -> bool:
    return rows > 0 and bool(np.isfinite(column).sum() >= SHARE * rows)


def _without_wrong(column: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The column with its few impossible numbers taken out, and their rows; as it is where they are many."""
    known = ~np.isnan(column)
    wrong = np.flatnonzero(known & ~((column >= 0) & (column < LARGEST) & (column == np.floor(column))))
    if not len(wrong) or len(wrong) > max(1, _WRONG * np.count_nonzero(known)):
        return column, _NO_ROWS
    column = column.copy()
    column[wrong] = np.nan
    return column, wrong


def _whole(values: NDArray[np.float64]) -> bool:
    return bool(len(values) and np.isfinite(values).all() and (values >= 0).all() and (values == np.floor(values)).all() and values.max() < LARGEST)


def _counts(
    column: NDArray[np.float64],
    epochs: NDArray[np.float64] | None = None,
    rank: NDArray[np.int16] | None = None,
    restarts: float = 0.02,
) -> bool:
    """Whether a column counts: whole numbers that rise, but for a few `restarts` (at most that share, or one) that are no new epoch."""
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
    """The column with each row that lacks a cell given the one before it (the first rows the first); None if all lack it."""
    known = ~np.isnan(column)
    if not known.any():
        return None
    return column[np.maximum.accumulate(np.where(known, np.arange(len(column)), int(np.argmax(known))))]


def _filled_int(column: NDArray[np.float64]) -> NDArray[np.int64]:
    filled = _filled(column)
    return np.empty(0, np.int64) if filled is None else filled.astype(np.int64)
