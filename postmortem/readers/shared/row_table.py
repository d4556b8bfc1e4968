"""Collects rows of named numbers, most cells absent, and turns them into points: for CSV, JSON and W&B logs."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.points import Points
from postmortem.core.roles import role_of
from postmortem.readers.shared.step_column import (
    COUNTERS,
    EPOCHS,
    UNSURE,
    epoch_axis,
    plain,
    row_axis,
    step_axis,
    written_by_several,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from numpy.typing import NDArray

    from postmortem.core.reading import Reading
    from postmortem.readers.shared.step_column import Axis

T = TypeVar("T", np.float64, np.int16)
_FEW_COLUMNS = 4
"""Columns that are picked out one by one; more are sorted out at once."""
_TIMES = {"wall_time", "walltime", "timestamp", "time", "datetime", "date", "created_at", "unix_time"}
_RANKS = {"rank", "global_rank"}
TELLING = {*COUNTERS, *UNSURE, *EPOCHS, *_TIMES, *_RANKS}
"""Columns that tell where, when and by whom a row was written."""
_MOST_ROWS = 0.75
_DIFFERENT = 3
"""Texts that differ in a column named like a metric, from which on they are no setting."""
_WITH_UNITS = ("step_time", "data_time", "memory", "throughput")
"""Roles of what many programs write as text on purpose: 0:01:26, 8 days, 4.10 GB, 3.2 it/s."""
_THING = later(
    r"(?:.*_)?(?:file_?names?|files?|paths?|images?|samples?|names?|ids?|models?|model_(?:type|name)|experiments?|methods?"
    r"|cases?|subjects?|patients?|datasets?|optimi[sz]ers?|activations?(?:_functions?)?|architectures?|algorithms?)"
)
"""Names of columns that say what a row is of."""
_WORD = re.compile(r"[^\W\d][\w \-]*")
"""A name, such as that of a loss function; no number that is damaged, and no sign for a missing one."""
_LIST, _SEVERAL = re.compile(r"(?s)\[.*\]"), re.compile(r"[^\[\s],? +[^\]\s]|,")
_SHEET_ERROR = re.compile(r"#(?:REF!|DIV/0!|VALUE!|NAME\?|N/A|NUM!|NULL!)")
_EARLIEST, _LATEST = 1e9, 5e9  # seconds: 2001 to 2128


@dataclass(slots=True)
class _Texts:
    """The cells of a column that hold text: how many, where the first is, and some that differ."""

    count: int = 0
    line: int = 0
    examples: list[str] = field(default_factory=list)


class RowTable:
    """N rows of (name, number) cells. A row need not have all cells; NaN is a number like any other.

    `blanks` counts the cells of each column that are there and hold nothing (null, an empty cell).
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._code, self._row, self._value = array("q"), array("q"), array("d")
        self._texts: dict[str, _Texts] = {}
        self.blanks: Counter[str] = Counter()
        self.n = 0

    def __len__(self) -> int:
        return self.n

    def add(self, row: Iterable[tuple[str, float]]) -> None:
        """Appends a row."""
        for name, value in row:
            self._code.append(self._codes.setdefault(name, len(self._codes)))
            self._row.append(self.n)
            self._value.append(value)
        self.n += 1

    def add_numbers(self, names: Sequence[str], values: Sequence[float]) -> None:
        """Appends a row that has a number in each of the columns `names`."""
        self._code.extend(self._codes.setdefault(name, len(self._codes)) for name in names)
        self._row.extend([self.n] * len(values))
        self._value.extend(values)
        self.n += 1

    def add_rows(
        self, n: int, names: Sequence[str], row: NDArray[np.int64], key: NDArray[np.int64], value: NDArray[np.float64]
    ) -> None:
        """Appends `n` rows: cells in the order of their rows, with `row` from 0 on, and `key` an index of `names`."""
        first = np.full(len(names), len(key))
        first[key[::-1]] = np.arange(len(key))[::-1]  # of several cells, the last that is written is the first
        code = np.zeros(len(names), np.int64)
        for i in np.argsort(first, kind="stable")[: np.count_nonzero(first < len(key))].tolist():
            code[i] = self._codes.setdefault(names[i], len(self._codes))
        self._code.frombytes(code[key].tobytes())
        self._row.frombytes((row + self.n).tobytes())
        self._value.frombytes(value.tobytes())
        self.n += n

    def add_table(self, names: Sequence[str], values: Sequence[float]) -> None:
        """Appends rows that each have a number in each of the columns `names`: `values` row by row."""
        n = len(values) // len(names)
        code = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int64)
        rows = np.arange(self.n, self.n + n, dtype=np.int64)
        self._code.frombytes(code[None, :].repeat(n, axis=0).tobytes())
        self._row.frombytes(rows.repeat(len(names)).tobytes())
        self._value.extend(values)
        self.n += n

    def add_text(self, name: str, line: int, text: str) -> None:
        """Counts a cell that holds text."""
        texts = self._texts.setdefault(name, _Texts(line=line))
        texts.count += 1
        if len(texts.examples) < _DIFFERENT and text not in texts.examples:
            texts.examples.append(text)

    def unreadable(self) -> dict[str, tuple[_Texts, int]]:
        """The columns of numbers in which cells hold text (a spreadsheet's errors), and how many numbers each has.

        A column of text that now and then holds a number is none, nor is a setting such as "loss": "mse".
        """
        if not self._texts:
            return {}
        numbers = Counter(self._code)
        found = {}
        for name, texts in self._texts.items():
            n = numbers[self._codes[name]] if name in self._codes else 0
            role = role_of(name)
            metric = role is not None and (n > 0 or (len(texts.examples) == _DIFFERENT and role not in _WITH_UNITS))
            if all(map(_LIST.fullmatch, texts.examples)) and any(_SEVERAL.search(text) for text in texts.examples):
                continue  # lists, or what numpy prints of arrays
            if n == 0 and all(map(_WORD.fullmatch, texts.examples)):
                continue  # a loss function by its name
            if metric or n > texts.count or any(_SHEET_ERROR.match(text) for text in texts.examples):
                found[name] = texts, n
        return found

    def text_columns(self) -> dict[str, int]:
        """The other columns that hold text, and in how many cells."""
        unreadable = self.unreadable()
        return {name: texts.count for name, texts in self._texts.items() if name not in unreadable}

    def of_things(self) -> str:
        """The column that names what each row is of, a file or a model, if there is one; else ""."""
        named = (n for n, t in self._texts.items() if t.count >= 0.5 * self.n and len(t.examples) == _DIFFERENT)
        return next((name for name in named if _THING.fullmatch(plain(name))), "")

    def columns(self, *more: str) -> dict[str, NDArray[np.float64]]:
        """The columns that may hold step, epoch, time or rank, and the columns `more`: float64[n], NaN if absent."""
        code, at, value = self._arrays()
        asked = {name: own for name, own in self._codes.items() if plain(name) in TELLING or name in more}
        if len(asked) > _FEW_COLUMNS:
            short = code.astype(np.uint16) if len(self._codes) < 1 << 16 else code  # sorted in linear time
            order = np.argsort(short, kind="stable")
            bounds = np.searchsorted(code[order], np.arange(len(self._codes) + 1)).tolist()
        found = {}
        for name, own in asked.items():
            mine = order[bounds[own] : bounds[own + 1]] if len(asked) > _FEW_COLUMNS else np.flatnonzero(code == own)
            column = np.full(self.n, math.nan)
            column[at[mine]] = value[mine]
            found[name] = column
        return found

    def in_each_row(self) -> bool:
        """Whether a metric has a cell in most rows."""
        cells = np.bincount(np.frombuffer(self._code, np.int64), minlength=len(self._codes))
        metrics = np.array([plain(name) not in TELLING for name in self._codes], bool)
        return bool((cells[metrics] >= _MOST_ROWS * self.n).any())

    def points(
        self,
        step: NDArray[np.int64],
        wall_time: Any = math.nan,
        rank: Any = -1,
        *,
        leave_out: Container[str] = (),
        without: Any = (),
        by_step: bool = False,
    ) -> Points:
        """All cells as points, except those of the columns `leave_out` and of the rows `without`.

        In order of the rows, or `by_step`.

        `step` int64[n], `wall_time` float64[n] and `rank` int16[n] belong to the rows; the last two may be scalars.
        """
        code, at, value = self._arrays()
        tags = [name for name in self._codes if name not in leave_out]
        order = {name: i for i, name in enumerate(tags)}
        renumbered = np.array([order.get(name, -1) for name in self._codes], np.int32)
        own = renumbered[code] if len(renumbered) else np.empty(0, np.int32)
        kept = own >= 0
        if len(without):
            kept &= ~np.isin(at, without)
        own, at, value = own[kept], at[kept], value[kept]
        if by_step:
            order_of_steps = np.argsort(step[at], kind="stable")
            own, at, value = own[order_of_steps], at[order_of_steps], value[order_of_steps]
        return Points(
            tags,
            own,
            step[at].astype(np.int64, copy=False),
            value,
            _at(at, wall_time, np.float64),
            _at(at, rank, np.int16),
        )

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        return np.array(self._code, np.int64), np.array(self._row, np.int64), np.array(self._value, np.float64)


def _at(rows: NDArray[np.int64], column: Any, dtype: type[T]) -> NDArray[T]:
    """The cells of a column, or the one number that stands for all of them, in these rows."""
    return (
        column[rows].astype(dtype, copy=False) if isinstance(column, np.ndarray) else np.full(len(rows), column, dtype)
    )


def finish(
    reading: Reading, table: RowTable, times: list[float], axis: Axis | None = None, torn: Sequence[int] = ()
) -> None:
    """Turns a table into the points of `reading`.

    Finds the columns of wall time and rank, and that of the step if `axis` is None. `times` are the wall times of the
    rows where no column holds them, NaN if unknown; `torn` the rows of damaged lines, see `step_axis`.
    """
    columns = table.columns()
    time_name, wall_time = _wall_times(columns) or ("", np.array(times))
    rank_name, rank = _ranks(columns) or ("", np.full(len(table), -1, np.int16))
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged step may be infinite
        axis = (
            axis
            or step_axis(columns, rank, torn=torn, dense=table.in_each_row)
            or epoch_axis(columns)
            or row_axis(len(table))
        )
    left_out = {*axis.columns, time_name, rank_name}
    reading.points = table.points(
        axis.step, wall_time, rank, leave_out=left_out, without=axis.wrong, by_step=axis.shuffled
    )
    reading.step_axis = axis.name
    reading.blanks = {name: count for name, count in table.blanks.items() if name not in axis.columns}
    reading.row_steps = axis.step if reading.blanks else None
    for name, (texts, n) in table.unreadable().items():
        cells, values = ("1 cell", "1 value") if texts.count == 1 else (f"{texts.count} cells", f"{texts.count} values")
        what = f"{cells} of column {name!r} cannot be read as a number; the first is {texts.examples[0][:60]!r}"
        lost = f"{values} of {name}"
        reading.unreadable[name] = texts.count
        reading.problems.append(
            Problem(path=reading.path, line=texts.line, what=what, kept=f"its {n} numbers", lost=lost)
        )
    if n := len(axis.wrong):
        rows, have = ("row", "has") if n == 1 else ("rows", "have")
        what = f"{n} {rows} {have} no valid step in column {axis.name!r}; the first is row {axis.wrong[0] + 1}"
        reading.problems.append(Problem(path=reading.path, what=what, kept="all other rows", lost=f"{n} {rows}"))
    if axis.name == "row" and (things := table.of_things()):
        reading.facts["listed by"] = things
    if axis.name == "row" and (counter := written_by_several(columns)):
        reading.facts["interleaved"] = counter
        reading.notes.append(f"{counter!r} goes back all over the table: several programs wrote it at once")
    if len(table):
        reading.notes.append(axis.note)
    known = wall_time[np.isfinite(wall_time)]
    if len(known):
        reading.started, reading.stopped = float(known[0]), float(known[-1])


def _wall_times(columns: dict[str, NDArray[np.float64]]) -> tuple[str, NDArray[np.float64]] | None:
    """Name and values, in seconds, of the column that holds seconds or milliseconds since the epoch."""
    for name, column in columns.items():
        known = column[~np.isnan(column)] if plain(name) in _TIMES else column[:0]
        if len(known):
            for scale in (1.0, 1e3):
                if (known >= _EARLIEST * scale).all() and (known <= _LATEST * scale).all():
                    return name, column / scale
    return None


def _ranks(columns: dict[str, NDArray[np.float64]]) -> tuple[str, NDArray[np.int16]] | None:
    """Name and values of the column with the rank that wrote each row."""
    for name, column in columns.items():
        if name.strip().lower() in _RANKS and ((column >= 0) & (column < 2**15) & (column == np.floor(column))).all():
            return name, column.astype(np.int16)
    return None


def iso_time(text: str) -> float | None:
    """Seconds since the epoch of an ISO date with a time of day, in UTC unless it has a zone; None for other text."""
    if len(text) < 16 or not text[:4].isdigit():
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
