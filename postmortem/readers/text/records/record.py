"""What one row of a text log reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from postmortem.readers.text.lines.prefixes import Prefix


class Trust(IntEnum):
    """How far the word in front of a step number can be trusted to count the steps of the whole training."""

    NONE = 0
    """The row names no step."""
    LOCAL = 1
    """A batch of an epoch."""
    STEP = 2
    ITERATION = 3
    GLOBAL = 4
    """A global step, which never starts again."""


class Value(NamedTuple):
    """One number with its tag. `start` and `end`: its position in the row's text; -1 if it is not printed as such."""

    tag: str
    number: float
    start: int = -1
    end: int = -1


@dataclass(slots=True)
class Record:
    """What one row reports: values, and where the training was.

    `step` with its `level` counts steps; `n` of `total` is a position, within `epoch` if there is one; `base` is the
    number of the first epoch if the dialect knows it. `at` maps the names of these fields to (start, end), the
    position of their numbers in the text. `evaluation`: measured on held-out data, so the values belong to the last
    training step and `n` is not a position of the training; `split` is the word for the data.

    `other` (of `other_total`) is a second counter, printed beside one that is trusted more: the whole file shows which
    of them counts the steps.
    """

    values: list[Value] = field(default_factory=list)
    step: float | None = None
    level: Trust = Trust.NONE
    n: float | None = None
    total: float | None = None
    other: float | None = None
    other_total: float | None = None
    epoch: float | None = None
    epochs: float | None = None
    base: int | None = None
    rank: int | None = None
    wall_time: float | None = None
    evaluation: bool = False
    split: str = ""
    samples: bool = False
    """`n` counts samples, not batches."""
    fractional: bool = False
    """The epoch counts fractions of epochs, even if it is a whole number here."""
    bar: bool = False
    """A state of a redrawn bar: the last state at a position counts, and values that it carries over count once."""
    once: bool = False
    """The record depends on the numbers themselves (the last batch of an epoch), so the row is no template."""
    absent: tuple[str, ...] = ()
    """Tags whose absence from this row means NaN if earlier rows of the same dialect printed them."""
    at: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def by_step(self) -> bool:
        """Whether `step`, not `n`, is the counter of the row."""
        return self.step is not None and (self.level > Trust.LOCAL or self.n is None)

    def set_aside(self, value: float, span: tuple[int, int]) -> None:
        """Keep a counter that is not taken as the step as the other one, if it is the first such."""
        if self.other is None:
            self.other, self.at["other"] = value, span

    def beside(self) -> dict[str, tuple[float | None, tuple[int, int] | None]]:
        """The second counter and its total, as fields of a row: (number, its position in the text)."""
        if self.other is None and self.by_step:
            return {"other": (self.n, self.at.get("n")), "other_total": (self.total, self.at.get("total"))}
        return {
            "other": (self.other, self.at.get("other")),
            "other_total": (self.other_total, self.at.get("other_total")),
        }


@dataclass(slots=True)
class Row:
    """A row to parse: `text` without its prefix, which holds rank, time and logger."""

    text: str
    prefix: Prefix
    line: int = 0
    rank: int = -1
