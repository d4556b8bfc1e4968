"""The records of a log as columns: one entry per row that has a record, and the numbers of all rows in order."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.records.step_words import HELD_OUT, is_of_held_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.records.record import Record

NO_STEP = np.iinfo(np.int64).min
EVALUATION, BAR, WITHIN, SAMPLES, FRACTIONAL = 1, 2, 4, 8, 16
"""Flags of a row. WITHIN: its step is a position that may start again in every epoch."""
MOST_TAGS = 20_000
"""Numbers under later names are counted, not read: no training has as many metrics, so these are not names."""


class Mark(IntEnum):
    """What is known about a tag besides its name."""

    PLAIN = 0
    ABSENT = 1
    """Its rows left the tag out: NaN if earlier rows printed it, else nothing."""
    HELD_OUT = 2
    """Of an evaluation. Its split word is put before the name if the tag would pass for one of the training: if it is
    a loss, or training rows print it too."""
    OTHERS = 3
    """All tags after the first `MOST_TAGS`."""


class Tag(NamedTuple):
    """The name of a quantity. `split` is the word for the data of an evaluation, "" if the tag is not marked as one."""

    name: str
    mark: Mark = Mark.PLAIN
    split: str = ""


OTHERS = Tag("", Mark.OTHERS)
CODE = np.uint16
"""The type of the index of a tag; holds `MOST_TAGS` and `OTHERS`."""

ROW = np.dtype(
    [
        ("line", np.uint32),
        ("rank", np.int16),
        ("wall_time", np.float64),
        ("step", np.int64),
        ("total", np.int32),
        ("other", np.int64),
        ("other_total", np.int32),
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
    """An array that grows at its end. While all its cells hold the same number, only that number is stored.

    Space is allocated ahead, which costs nothing until it is written. resize() writes the cells that it adds, so it is
    rarely called.
    """

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(0, dtype)
        self._size = 0
        self._same: Any = None

    def room(self, n: int, share: float) -> NDArray[Any]:
        """The next n cells, to be written before the next call. `share`: the part of the final size with them."""
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
        """Set the next n cells to this number."""
        if self._size == 0 or (self._same is not None and same(self._same, value)):
            self._same = value
            self._size += n
        else:
            self.room(n, share)[:] = value

    def done(self) -> NDArray[Any]:
        """All cells; read-only if all hold the same number."""
        if self._same is not None:
            return np.broadcast_to(np.array(self._same, self._data.dtype), self._size)
        self._data.resize(self._size, refcheck=False)
        return self._data


def same(a: Any, b: Any) -> bool:
    """Whether two numbers are equal, or both NaN."""
    return bool(a == b or (a != a and b != b))


class StoredRows:
    """N rows as columns of the types in `ROW`; `rows[name]` is a column, `rows[indices]` a selection of rows."""

    def __init__(self, columns: dict[str, NDArray[Any]], which: Any = None) -> None:
        self._columns = columns
        self._which = which

    def __len__(self) -> int:
        return len(self["line"])

    def with_column(self, name: str, column: NDArray[Any]) -> StoredRows:
        """The same rows with one column replaced."""
        return StoredRows(self._columns | {name: column}, self._which)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            column = self._columns[key]
            return column if self._which is None else column[self._which]
        return StoredRows(self._columns, key if self._which is None else self._which[key])


class Cells:
    """Which values belong to which row: row i has `count[i]` of them, after those of the rows before it."""

    def __init__(self, count: NDArray[np.uint16]) -> None:
        self.count = count
        self.end = np.cumsum(count, dtype=np.int32 if count.sum(dtype=np.int64) < 2**31 else np.int64)

    def of(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Indices of the values of these rows."""
        if not len(rows):
            return np.empty(0, np.intp)
        count = self.count[rows]
        end = np.cumsum(count, dtype=self.end.dtype)
        index = np.repeat(self.end[rows] - end, count)
        index += np.arange(len(index), dtype=index.dtype)
        return index

    def owner_of(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """The rows of values, by their indices."""
        if len(values) > len(self.count) // 8:
            found: NDArray[np.intp] = self.owner()[values].astype(np.intp)
        else:
            found = np.searchsorted(self.end, values, side="right")
        return found

    def owner(self) -> NDArray[np.int32]:
        """The row of every value."""
        return np.repeat(np.arange(len(self.count), dtype=np.int32), self.count)


def squeeze(cells: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
    """Move the cells to keep to the front of the array and return them. No memory is allocated."""
    at = 0
    for start in range(0, len(cells), _PIECE):
        piece = cells[start : start + _PIECE][keep[start : start + _PIECE]]
        cells[at : at + len(piece)] = piece
        at += len(piece)
    return cells[:at]


class RowStore:
    """The records of all rows, in order."""

    def __init__(self) -> None:
        self.tags: dict[Tag, int] = {}
        """Code of each tag: its position in this dict."""
        self.share = 1.0
        """The part of the file that has been read; above 0, at most 1."""
        self.code_lines: list[int] = []
        """Lines of source code, whose rows are left out."""
        self._forget()

    def _forget(self) -> None:
        self._columns = {name: _Growing(ROW[name]) for name in FIELDS}
        self._codes = _Growing(CODE)
        self._values = _Growing(np.float64)

    def code(self, tag: Tag) -> int:
        """The code of a tag. Beyond MOST_TAGS all new tags share that of OTHERS."""
        if len(self.tags) >= MOST_TAGS and tag not in self.tags:
            tag = OTHERS
        return self.tags.setdefault(tag, len(self.tags))

    def full(self) -> bool:
        """Whether new names are no longer stored."""
        return OTHERS in self.tags

    def column(self, name: str, n: int) -> NDArray[Any]:
        """Space for n more cells of a column of `ROW`, to be written before the next call."""
        return self._columns[name].room(n, self.share)

    def fill(self, name: str, n: int, value: Any) -> None:
        """Append n cells of the same number to a column of `ROW`."""
        self._columns[name].fill(n, value, self.share)

    def room(self, n: int) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
        """Space for n more values, codes and numbers, to be written before the next call."""
        return self._codes.room(n, self.share), self._values.room(n, self.share)

    def release(self) -> tuple[StoredRows, NDArray[np.uint16], NDArray[np.float64]]:
        """Return rows, codes and values, and drop them; the tags stay."""
        found = (
            StoredRows({name: column.done() for name, column in self._columns.items()}),
            self._codes.done(),
            self._values.done(),
        )
        self._forget()
        rows, codes, values = found
        code = np.isin(rows["line"], self.code_lines) if self.code_lines else np.zeros(0, bool)
        if not code.any():
            return found
        stays = np.repeat(~code, rows["count"])
        return StoredRows({name: rows[name][~code] for name in FIELDS}), codes[stays], values[stays]


def tag_of(name: str, record: Record) -> Tag:
    """The tag of a value of `record`, marked if it was measured on held-out data and its name does not say so."""
    is_held_out = record.split and record.split.lower() in HELD_OUT
    if is_held_out and not is_of_held_out(name):
        return Tag(name, Mark.HELD_OUT, record.split)
    return Tag(name)


def row_of(record: Record, line: int, rank: int, wall_time: float, dialect: int, count: int) -> tuple[Any, ...]:
    """A record as one `ROW`."""
    flags = EVALUATION * record.evaluation | BAR * record.bar | SAMPLES * record.samples
    flags |= FRACTIONAL * (record.fractional or (record.epoch is not None and record.epoch != record.epoch // 1))
    step, total = NO_STEP, record.total
    beside = record.beside()
    other, other_total = beside["other"][0], beside["other_total"][0]
    if record.step is not None and record.by_step:
        step = held(record.step)
        if record.level == Trust.LOCAL:
            flags |= WITHIN
    elif record.n is not None:
        step = held(record.n)
        if record.level < Trust.GLOBAL:
            flags |= WITHIN
    return (
        line,
        rank if -1 <= rank < 32768 else -1,
        wall_time,
        step,
        _total(total),
        NO_STEP if other is None else held(other),
        _total(other_total),
        np.nan if record.epoch is None else record.epoch,
        _total(record.epochs),
        record.level,
        -1 if record.base is None else record.base,
        flags,
        dialect,
        count,
    )


def _total(total: float | None) -> int:
    """A printed total; -1 if there is none that can be one."""
    return -1 if total is None or not 0 < total < 2**31 else int(total)


def held(step: float) -> int:
    """A printed step, clipped to int64."""
    return int(max(-(2.0**62), min(2.0**62, step)))
