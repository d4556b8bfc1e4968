"""Reads tables of metrics in comma- or tab-separated text."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import NON_FINITE
from postmortem.readers.shared.row_table import RowTable, finish, iso_time
from postmortem.readers.shared.step_column import EPOCHS, counter_names, plain

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content

ABSENT = {"", "none", "null", "n/a", "na", "--", "-"}
_MOST_REPORTED = 20


@reader
class CsvTable:
    """Tables of metrics with a header line: Lightning's ``metrics.csv`` and any CSV or TSV with numbers.

    The step is the column that counts steps (global_step, step, iteration, …, in any case); else a counter within
    epochs combined with the epoch; else the epoch; else the row number, with a note. An empty cell is absent, not NaN;
    ``nan`` and ``inf`` in any spelling are numbers. Cells with text are counted. A column of plausible times since the
    epoch becomes the wall time. A repeated header line, as after a restart, starts a new part.

    Formats: RFC 4180; lightning/fabric/loggers/csv_logs.py.
    """

    kind: ClassVar[str] = "csv"
    priority: ClassVar[int] = 30
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A .csv or .tsv file whose header names a counter, an epoch or a known metric."""
        if path.suffix.lower() not in (".csv", ".tsv"):
            return False
        lines = decoded(head)[0].splitlines()[:2]
        if not lines:
            return False
        separator = _separator(lines[0], path)
        names = _split(lines[0], separator)
        known = counter_names(names) or [n for n in names if plain(n) in EPOCHS or role_of(n) is not None]
        numbers = len(lines) == 1 or any(_number(cell) is not None for cell in _split(lines[1], separator))
        return bool(known) and numbers and not any(_number(n) is not None for n in names)

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole table."""
        return _File(path).read()


class _File:
    """The state of reading one table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = Reading(source=CsvTable.kind, path=str(path))
        self.table = RowTable()
        self.times: list[float] = []
        self.no_numbers: Counter[str] = Counter()
        self.damaged: list[Problem] = []
        self.torn_rows: list[int] = []

    def read(self) -> Reading:
        text, problems = decoded(self.path.read_bytes(), str(self.path))
        lines = text.split("\n")
        names: list[str] = []
        separator = _separator(next((line for line in lines if line.strip()), ""), self.path)
        for number, line in enumerate(lines, 1):
            if not line.strip(" \r\t"):
                continue
            cells = [cell.strip() for cell in _split(line, separator)]
            if not names or cells == names or _is_header(cells):
                names = [name or f"column {i}" for i, name in enumerate(cells, 1)]
                continue
            if len(cells) != len(names):
                cells = self.torn(number, cells, names, last=number == len(lines))
            self.row(names, cells)
        finish(self.reading, self.table, self.times, torn=self.torn_rows)
        if self.no_numbers:
            self.reading.skipped["non-numeric cells"] = sum(self.no_numbers.values())
            self.reading.notes.append(f"text columns: {', '.join(sorted(self.no_numbers))}")
        if not names:
            problems.append(Problem(path=str(self.path), offset=0, what="the file is empty", kept="nothing"))
        self.reading.problems += problems + self.damaged[:_MOST_REPORTED]
        if more := self.damaged[_MOST_REPORTED:]:
            what = f"{len(more)} more lines with a wrong number of cells, starting here"
            self.reading.problems.append(
                Problem(path=str(self.path), line=more[0].line, what=what, lost="cells of these lines")
            )
        return self.reading

    def torn(self, number: int, cells: list[str], names: list[str], *, last: bool) -> list[str]:
        """Reports a line with too few or too many cells, and returns the cells that are surely whole and in place."""
        if last and len(cells) < len(names):
            what, lost = "truncated: the last line is incomplete", f"its last {len(names) - len(cells) + 1} cells"
        else:
            what, lost = f"{len(cells)} cells in this line, {len(names)} in the header", "the cells that do not fit"
        self.torn_rows.append(len(self.table))
        self.damaged.append(
            Problem(path=str(self.path), line=number, what=what, kept=f"{len(self.table)} rows before it", lost=lost)
        )
        return cells[: len(names)] if len(cells) > len(names) else cells[:-1]

    def row(self, names: list[str], cells: list[str]) -> None:
        numbers: list[tuple[str, float]] = []
        time = np.nan
        for name, cell in zip(names, cells, strict=False):
            value = _number(cell)
            if value is not None:
                numbers.append((name, value))
            elif cell.lower() not in ABSENT:
                moment = iso_time(cell)
                time = time if moment is None else moment
                self.no_numbers[name] += 1
        self.table.add(numbers)
        self.times.append(time)


def _is_header(cells: list[str]) -> bool:
    """Whether a line in the middle of a table is a new header: names only, and a counter among them."""
    named = len(cells) > 1 and all(cell and _number(cell) is None for cell in cells)
    return named and bool(counter_names(cells))


def _separator(header: str, path: Path) -> str:
    return max(",\t;", key=lambda s: (header.count(s), s == ("\t" if path.suffix.lower() == ".tsv" else ",")))


def _split(line: str, separator: str) -> list[str]:
    line = line.rstrip("\r")
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return line.split(separator)


def _number(cell: str) -> float | None:
    """The cell as a number, or None for text, also for "1_000", which `float` accepts."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return NON_FINITE.get(cell.strip().lower())
