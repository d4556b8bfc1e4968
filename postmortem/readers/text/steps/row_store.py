"""What the rows of a log said, as columns: one entry per row that said something, and the numbers of all rows behind one another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.readers.text.records.step_words import HELD_OUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.records.record import Record

NO_STEP = np.iinfo(np.int64).min
EVALUATION, BAR, WITHIN, SAMPLES, FRACTIONAL = 1, 2, 4, 8, 16
"""Flags of a row; WITHIN: its step is a position that may start again in every epoch."""
MAYBE, HELD, HELD_BARE = "\x00", "\x01", "\x02"
"""In front of a tag. MAYBE: NaN if earlier rows printed the tag, else nothing. HELD: an evaluation's value, followed
by its split word; it is put before the tag where the value would pass for the training's (a loss, or a tag
that training rows print, too); HELD_BARE: only where training rows print it."""
OTHERS, MOST_TAGS = "\x03", 20_000
"""The tag of all numbers whose names come after so many others: no training has as many, so they are no names."""
CODE = np.uint16
"""The type of a tag's number; `MOST_TAGS` and the others fit."""

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
FIELDS: tuple[str, ...] = ROW.names or ()


_AHEAD = 1 << 27
_PIECE = 1 << 13


class _Growing:
    """An array that grows at its end. While all its cells are the same number it is kept as that number alone.

    Space is asked for ahead, which costs nothing until it is written; resize() writes what it adds, so it is hardly ever needed.
    """

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(0, dtype)
        self._size = 0
        self._same: Any = None

    def room(self, n: int, share: float) -> NDArray[Any]:
        """The next n cells, to be written; valid until the next call. `share`: how much of all there will be is here with them."""
        need = self._size + n
        if need > len(self._data):
            space = max(need, min(int(need / share * 1.05), need + _AHEAD))
            if self._size and self._same is None:
                self._data.resize(space, refcheck=False)
            else:
                self._data = np.empty(space, self._data.dtype)
                self._data[: self._size] = 0 if self._same is None else self._same
                self._same = None
        self._size = need
        return self._data[need - n : need]

    def fill(self, n: int, value: Any, share: float) -> None:
        """The next n cells all hold this number."""
        if self._size == 0 or (self._same is not None and same(self._same, value)):
            self._same = value
            self._size += n
        else:
            self.room(n, share)[:] = value

    def done(self) -> NDArray[Any]:
        """All cells; they cannot be written where they are one number."""
        if self._same is not None:
            return np.broadcast_to(np.array(self._same, self._data.dtype), self._size)
        self._data.resize(self._size, refcheck=False)
        return self._data


def same(a: Any, b: Any) -> bool:
    """Whether two numbers are equal, or both NaN."""
    return bool(a == b or (a != a and b != b))


class Table:
    """n rows as columns of the types of `ROW`; `rows[name]` is a column, `rows[indices]` are some of the rows."""

    def __init__(self, columns: dict[str, NDArray[Any]], which: Any = None) -> None:
        self._columns = columns
        self._which = which

    def __len__(self) -> int:
        return len(self["line"])

    def with_column(self, name: str, column: NDArray[Any]) -> Table:
        """The same rows, one column replaced."""
        return Table(self._columns | {name: column}, self._which)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            column = self._columns[key]
            return column if self._which is None else column[self._which]
        return Table(self._columns, key if self._which is None else self._which[key])


class Cells:
    """Which values are which row's: row i has `count[i]` of them, behind those of the rows before."""

    def __init__(self, count: NDArray[np.uint16]) -> None:
        self.count = count
        self.end = np.cumsum(count, dtype=np.int32 if count.sum(dtype=np.int64) < 2**31 else np.int64)

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


def squeeze(cells: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
    """The cells to keep, moved to the front of the same array, which costs no fresh pages."""
    at = 0
    for start in range(0, len(cells), _PIECE):
        piece = cells[start : start + _PIECE][keep[start : start + _PIECE]]
        cells[at : at + len(piece)] = piece
        at += len(piece)
    return cells[:at]


class Track:
    """Everything that rows said, in order."""

    def __init__(self) -> None:
        self.tags: dict[str, int] = {}
        self.share = 1.0
        """How much of the file has been read, from above 0 to 1."""
        self._forget()

    def _forget(self) -> None:
        self._columns = {name: _Growing(ROW[name]) for name in FIELDS}
        self._codes = _Growing(CODE)
        self._values = _Growing(np.float64)

    def code(self, tag: str) -> int:
        """The number of a tag; beyond MOST_TAGS all new ones share that of OTHERS."""
        if len(self.tags) >= MOST_TAGS and tag not in self.tags:
            tag = OTHERS
        return self.tags.setdefault(tag, len(self.tags))

    def full(self) -> bool:
        """Whether new names are no longer taken."""
        return OTHERS in self.tags

    def column(self, name: str, n: int) -> NDArray[Any]:
        """Space for n more cells of a column of `ROW`, to be written at once."""
        return self._columns[name].room(n, self.share)

    def fill(self, name: str, n: int, value: Any) -> None:
        """The same number for n more cells of a column of `ROW`."""
        self._columns[name].fill(n, value, self.share)

    def room(self, n: int) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
        """Space for n more values: codes and numbers, to be written at once."""
        return self._codes.room(n, self.share), self._values.room(n, self.share)

    def release(self) -> tuple[Table, NDArray[np.uint16], NDArray[np.float64]]:
        """Hands out everything but the tags, and forgets it."""
        found = Table({name: column.done() for name, column in self._columns.items()}), self._codes.done(), self._values.done()
        self._forget()
        return found


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
