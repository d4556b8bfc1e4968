"""Reads tables of metrics in comma- or tab-separated text."""

from __future__ import annotations

import csv
import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.progress import progressed
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.core.skipped import Skip
from postmortem.readers import reader
from postmortem.readers.shared.bare_columns import bare_columns
from postmortem.readers.shared.decode import decoded, head_text
from postmortem.readers.shared.json_numbers import is_blank, written_number
from postmortem.readers.shared.long_rows import LongRows
from postmortem.readers.shared.open_end import CUT, NO_END, NOT_USED, last_number
from postmortem.readers.shared.row_table import RowTable, finish, iso_time
from postmortem.readers.shared.step_column import EPOCHS, counter_names, plain

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Extent
    from postmortem.readers import Content

_MOST_REPORTED = 20
_COMPARED = 20
"""Rows whose last cell is compared with that of a last line without a line end."""
_AT_ONCE = 8192
"""Rows of plain numbers that are read together."""
_HEAD = 4096
"""Characters in which the form of the table shows."""
_COMMA = later(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = later(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_POINT = re.compile(r"\d\.\d")
_MONITOR = {"r", "l", "t"}
"""Columns of Gym's Monitor: reward, length and time of each episode."""


def _is_comment(line: str) -> bool:
    """Whether a line before the header tells something else, as the JSON object on the first line of Gym's Monitor."""
    return line.startswith(("#{", "# "))


@reader
class CsvTable:
    """Tables of metrics with a header line: Lightning's ``metrics.csv`` and any CSV or TSV with numbers.

    The step is the column that counts steps (global_step, step, iteration, …, in any case); else a counter within
    epochs combined with the epoch; else the epoch; else the row number, with a note. A column such as `split` gives the
    tags of its rows the word for held-out data, and in a table of `metric` and `value` the first names the second. An
    empty cell is absent, not NaN, and counted; ``nan`` and ``inf`` in any spelling are numbers, as are ``tensor(0.5)``
    and, between semicolons, 0,5. Text in a column of numbers ("#REF!") is a Problem, other text is counted. Of a last
    row without a line end, the last number is used only if it has as many decimals as those above it. A column of
    plausible times since the epoch becomes the wall time. A repeated header line, as after a restart, starts a new
    part. Lines before the header that begin with ``#`` are comments. A file of nothing but numbers is a table as well
    if its name (``train_loss.txt``) or its one line of text names a metric.

    Formats: RFC 4180; lightning/fabric/loggers/csv_logs.py; stable_baselines3/common/monitor.py.
    """

    kind: ClassVar[str] = "csv"
    priority: ClassVar[int] = 30
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A .csv or .tsv file whose header names a counter, an epoch or a known metric, or bare columns of numbers."""
        if bare_columns(path, head) is not None:
            return True
        if path.suffix.lower() not in (".csv", ".tsv"):
            return False
        lines = [*islice((line for line in head_text(head).splitlines() if not _is_comment(line)), 2)]
        if not lines:
            return False
        separator = _separator(lines[0], path)
        names = _split(lines[0], separator)
        known = counter_names(names) or [n for n in names if plain(n) in EPOCHS or role_of(n) is not None]
        known = known or (names if _MONITOR.issubset(names) else [])
        numbers = len(lines) == 1 or any(written_number(cell) is not None for cell in _split(lines[1], separator))
        return bool(known) and numbers and not any(written_number(n) is not None for n in names)

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole table."""
        return _File(path).read()


class _File:
    """The state of reading one table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = Reading(source=CsvTable.kind, path=str(path))
        self.table, self.long_rows = RowTable(), LongRows()
        self.names: list[str] = []
        self.counter = ""
        self.separator = ","
        self.is_long = False
        self.times: list[float] = []
        self.commas = False
        """Whether the numbers have decimal commas."""
        self.damaged: list[Problem] = []
        self.torn_rows: list[int] = []
        self.last_cells: deque[str] = deque(maxlen=_COMPARED)

    def read(self) -> Reading:
        text, problems = decoded(self.path.read_bytes(), str(self.path))
        lines = text.split("\n")
        header = next((i for i, line in enumerate(lines) if line.strip() and not _is_comment(line)), len(lines))
        self.separator, at = _separator(lines[header] if header < len(lines) else "", self.path), 0
        if (bare := bare_columns(self.path, text[:_HEAD].encode())) is not None:
            self.names, self.separator, at = list(bare.names), bare.separator, header + bare.before
            header = at
        self.commas = self.separator != "," and _POINT.search(text) is None
        end, last = min(header + 1, len(lines)), len(lines) - 1
        while at < len(lines):
            rows = lines[at:end]
            if at == last or not self.plain_rows(rows):
                for number, line in enumerate(rows, at + 1):
                    self.line(number, line, last=number == len(lines))
            at, end = end, min(end + _AT_ONCE, max(last, end + 1))  # the last one, which may be cut, comes alone
            if at > _AT_ONCE:
                progressed(str(self.path), at, len(lines))
        finish(self.reading, self.table, self.times, torn=self.torn_rows)
        if texts := self.table.text_columns():
            self.reading.skipped[Skip.CELLS] = sum(texts.values())
            self.reading.notes.append(f"text columns: {', '.join(sorted(texts))}")
        if not self.names:
            problems.append(
                Problem(path=str(self.path), offset=0, what="the file is empty", kept="nothing", extent="file")
            )
        self.reading.problems += problems + self.damaged[:_MOST_REPORTED]
        if more := self.damaged[_MOST_REPORTED:]:
            what = f"{len(more)} more lines with a wrong number of cells, starting here"
            self.reading.problems.append(
                Problem(path=str(self.path), line=more[0].line, what=what, lost="cells of these lines")
            )
        return self.reading

    def line(self, number: int, line: str, *, last: bool) -> None:
        """Reads one line; `last`: it has no line end."""
        names = self.names
        if not line.strip(" \r\t") or (not names and _is_comment(line)):
            return
        cells = [cell.strip() for cell in _split(line, self.separator)]
        if not names or cells == names or _is_header(cells):
            self.names = [name or f"column {i}" for i, name in enumerate(cells, 1)]
            self.counter = next(iter(counter_names(self.names)), "")
            self.is_long = LongRows.apply(self.names)
            return
        torn = len(cells) != len(names)
        if torn:
            cells = self.torn(number, cells, names, last=last)
        elif last:
            cells = self.open_end(number, cells)
        if not self.counter or self.counter in names[: len(cells)]:  # else nobody knows where the row belongs
            self.torn_rows += [len(self.table)] * torn
            self.row(number, names, cells)
            self.last_cells.extend(cells[-1:])

    def plain_rows(self, rows: list[str]) -> bool:
        """Reads these lines at once and returns True, if each of them has a plain number in each column."""
        names = self.names
        if not names or self.is_long or _all_numbers(names) is not None:
            return False
        if any(row.count(self.separator) != len(names) - 1 for row in rows):
            return False
        if (values := _all_numbers(self.separator.join(rows).split(self.separator))) is None:
            return False
        self.table.add_table(names, values)
        self.times += [np.nan] * len(rows)
        self.last_cells.extend(row.rpartition(self.separator)[2].strip() for row in rows[-_COMPARED:])
        return True

    def torn(self, number: int, cells: list[str], names: list[str], *, last: bool) -> list[str]:
        """Reports a line with too few or too many cells, and returns the cells that are surely whole and in place."""
        extent: Extent = "records"
        if last and len(cells) < len(names):
            what, lost, extent = CUT, f"its last {len(names) - len(cells) + 1} cells", "cut"
        else:
            what, lost = f"{len(cells)} cells in this line, {len(names)} in the header", "the cells that do not fit"
        self.damaged.append(
            Problem(
                path=str(self.path),
                line=number,
                what=what,
                kept=f"{len(self.table)} rows before it",
                lost=lost,
                extent=extent,
            )
        )
        return cells[: len(names)] if len(cells) > len(names) else cells[:-1]

    def open_end(self, number: int, cells: list[str]) -> list[str]:
        """The cells of a last line without a line end, without the last one if that may be cut, which is reported."""
        state = last_number(cells[-1], self.last_cells)
        if state == "whole" and (cells[-1] or "" in self.last_cells):
            self.reading.notes.append(NO_END)
            return cells
        what, lost = (CUT, "its last cell") if state == "cut" else (NOT_USED, "")
        kept = f"{len(self.table)} rows before it"
        self.damaged.append(Problem(path=str(self.path), line=number, what=what, kept=kept, lost=lost, extent="cut"))
        return cells[:-1]

    def with_a_point(self, cell: str) -> str:
        """A number as Python writes it: without the commas between thousands, or with a point for a decimal comma."""
        if "," in cell and self.commas and _COMMA.fullmatch(cell):
            return cell.replace(",", ".")
        return cell.replace(",", "") if "," in cell and _THOUSANDS.fullmatch(cell) else cell

    def row(self, line: int, names: list[str], cells: list[str]) -> None:
        if (plainly := None if self.is_long else _all_numbers(cells)) is not None:
            self.table.add_numbers(names[: len(cells)], plainly)
            self.times.append(np.nan)
            return
        numbers: list[tuple[str, float]] = []
        time = np.nan
        named = zip(names, cells, strict=False)
        for name, cell in self.long_rows.renamed(dict(named)).items() if self.is_long else named:
            if not cell:
                self.table.blanks[name] += 1
                continue
            value = written_number(self.with_a_point(cell))
            if value is not None:
                numbers.append((name, value))
            elif is_blank(cell):
                self.table.blanks[name] += 1
            elif (moment := iso_time(cell)) is not None:
                time = moment
            else:
                self.table.add_text(name, line, cell)
        self.table.add(numbers)
        self.times.append(time)


def _all_numbers(cells: list[str]) -> list[float] | None:
    """The cells of a row in which all are numbers as `float` reads them, else None."""
    try:
        values = list(map(float, cells))
    except ValueError:
        return None
    return None if "_" in "".join(cells) else values


def _is_header(cells: list[str]) -> bool:
    """Whether a line in the middle of a table is a new header: names only, and a counter among them."""
    named = len(cells) > 1 and all(cell and written_number(cell) is None for cell in cells)
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
