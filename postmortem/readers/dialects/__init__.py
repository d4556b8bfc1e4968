"""Dialects: one file per style in which programs print their metrics.

A dialect is a subclass of `Dialect` registered by ``@dialect``. It looks at one row (a line, or one state of a
redrawn bar) and answers with a `Record`, or None where the row is not its own. Which dialects a file uses is
decided by evidence: rows that it explains, row by row, so a file may change its style in the middle. What no dialect claims goes
to the general miner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    import re

    from postmortem.readers._prefix import Prefix


class Trust(IntEnum):
    """How far the word in front of a step number can be trusted to count steps of the whole training."""

    NONE = 0
    """No step is named."""
    LOCAL = 1
    """A batch of an epoch."""
    STEP = 2
    ITERATION = 3
    GLOBAL = 4
    """A global step: it never starts again."""


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
    level: Trust = Trust.NONE
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


class Dialect:
    """Base of all dialects. One instance reads one file, so state may be kept on it (by rank)."""

    name: ClassVar[str]
    priority: ClassVar[int] = 50
    """Lower is asked first: the more specific, the lower."""
    needles: ClassVar[tuple[str, ...]] = ()
    """A row is looked at only if it contains one of these; empty: always."""
    content: ClassVar[re.Pattern[str] | None] = None
    """Rows for which the answer depends on earlier rows. All others that differ only in their numbers share one parse."""

    def sniff(self, sample: str) -> bool:
        """Whether the dialect is to be asked at all, by the beginning of the file."""
        return True

    def parse(self, row: Row) -> Record | None:
        raise NotImplementedError


DIALECTS: Registry[type[Dialect]] = Registry("postmortem.readers.dialects", key=lambda d: f"{d.priority:03d} {d.name}")
dialect = DIALECTS.register
