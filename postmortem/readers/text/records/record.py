"""What one row of a text log reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from postmortem.readers.text.lines.prefixes import Prefix


LOCAL, STEP, ITERATION, GLOBAL = 1, 2, 3, 4
"""How far a step word can be trusted: batch of an epoch < step < iteration < global step."""


class Value(NamedTuple):
    """One number with its tag. `start` and `end` are its place in the row's text; -1 where it is not there as such."""

    tag: str
    number: float
    start: int = -1
    end: int = -1


@dataclass(slots=True)
class Record:
    """What one row says: values, and where the training was.

    `step` with its `level` is a count of steps; `n` of `total` a position, within `epoch` where there is one;
    `base` is the number of the first epoch where the dialect knows it. `at` holds the places (start, end) of
    those numbers in the text, by field name. `evaluation`: measured on held-out data, so it belongs to the
    last training step and `n` is no training position; `split` is the word for it.
    """

    values: list[Value] = field(default_factory=list)
    step: float | None = None
    level: int = 0
    n: float | None = None
    total: float | None = None
    epoch: float | None = None
    epochs: float | None = None
    base: int | None = None
    rank: int | None = None
    wall_time: float | None = None
    evaluation: bool = False
    split: str = ""
    samples: bool = False
    """`n` counts samples, not batches."""
    own_names: bool = False
    """The names of an evaluation's values tell enough: no split word is put before a loss."""
    fractional: bool = False
    """The epoch counts fractions of epochs, even where it is whole."""
    bar: bool = False
    """One state of a redrawn bar: the last state of a position wins, carried-over values count once."""
    once: bool = False
    """What the row says hangs on the numbers themselves (the last batch of an epoch), so it is no pattern for others."""
    absent: tuple[str, ...] = ()
    """Tags whose absence from this row means NaN, if the family printed them before."""
    at: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Row:
    """A row to be understood: `text` without its prefix, which says rank, time and logger."""

    text: str
    prefix: Prefix
    line: int = 0
    rank: int = -1
