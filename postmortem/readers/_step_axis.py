"""Which column of a table counts the training steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

COUNTERS = (
    "global_step",
    "num_updates",
    "total_timesteps",
    "timesteps_total",
    "global_iteration",
    "global_iter",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "current_steps",
    "step",
    "steps",
    "update",
    "updates",
    "training_iteration",
    "num_steps",
    "n_iter",
    "step_num",
    "train_step",
)
"""Names of counters, the most telling first; groups in front ("trainer/", "train/") and case do not matter."""

_GROUP = re.compile(r"^.*[/.]")


def plain(name: str) -> str:
    """A column's name without groups, case, blanks and dashes: "Trainer/Global Step" is "global_step"."""
    return re.sub(r"[\s\-]+", "_", _GROUP.sub("", name.strip().lower()))


def counter_columns(names: Iterable[str]) -> list[str]:
    """The names that may count steps, the most telling first."""
    known = [n for n in names if plain(n) in COUNTERS]
    return sorted(known, key=lambda n: (COUNTERS.index(plain(n)), n.count("/"), n))


def counts(values: NDArray[np.float64]) -> bool:
    """Whether values, in order of arrival, are a counter: whole, never negative, rising but for a few restarts."""
    if not len(values) or not np.isfinite(values).all() or (values < 0).any() or (values != np.floor(values)).any() or values.max() >= 2**62:
        return False
    moves = np.diff(values)
    moves = moves[moves != 0]
    return bool(len(values) == 1 or (len(moves) > 0 and np.count_nonzero(moves < 0) <= len(moves) * 0.02 + (len(moves) > 20)))


def carried(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Steps of all rows: a row without one belongs to the last one before it (the first rows to the first)."""
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), int(np.argmax(known))))
    return values[last].astype(np.int64)
