"""Tables of metrics as comma- or tab-separated text."""

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
from postmortem.readers.shared.row_table import Table, finish, iso_time
from postmortem.readers.shared.step_column import EPOCHS, counter_names, plain

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content

ABSENT = {"", "none", "null", "n/a", "na", "--", "-"}
_MOST_TOLD = 20


@reader
class CsvTable:
    """Tables of metrics with a header line: Lightning's ``metrics.csv`` and any CSV or TSV with numbers.

    The step is the column that counts (global_step, step, iteration, …, in any case); else a counter within epochs put
    together with the epoch; else the epoch; else the row's number, and the notes say so. An empty cell is absent, not
    NaN; ``nan`` and ``inf`` in any spelling are numbers. Columns that are no numbers are counted. A column of plausible
    times since the epoch becomes the wall time. A header line that comes again, as after a restart, begins a new part.

    Formats: RFC 4180; lightning/fabric/loggers/csv_logs.py.
    """

    kind: ClassVar[str] = "csv"
    priority: ClassVar[int] = 30
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        if path.suffix.lower() not in (".csv", ".tsv"):
            return False
        lines = decoded(head)[0].splitlines()[:2]
        if not lines:
            return False
        separator = _separator(lines[0], path)
        names = _split(lines[0], separator)
        telling = counter_names(names) or [n for n in names if plain(n) in EPOCHS or role_of(n) is not None]
        numbers = len(lines) == 1 or any(_number(cell) is not None for cell in _split(lines[1], separator))
        return bool(telling) and numbers and not any(_number(n) is not None for n in names)

    @staticmethod
    def read(path: Path) -> Reading:
        return _File(path).read()


class _File:
    """One table while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = Reading(source=CsvTable.kind, path=str(path))
        self.table = Table()
        self.times: list[float] = []
        self.no_numbers: Counter[str] = Counter()
        self.damaged: list[Problem] = []

    def read(self) -> Reading:
        text, problems = decoded(self.path.read_bytes(), str(self.path))
        lines = text.split("\n")
        names: list[str] = []
        separator = _separator(next((line for line in lines if line.strip()), ""), self.path)
        for number, line in enumerate(lines, 1):
            if not line.strip(" \r\t"):
                continue
            cells = [cell.strip() for cell in _split(line, separator)]
            if not names or cells == names or (len(cells) > 1 and all(cell and _number(cell) is None for cell in cells) and counter_names(cells)):
                names = [name or f"column {i}" for i, name in enumerate(cells, 1)]
                continue
            if len(cells) != len(names):
                cells = self.torn(number, cells, names, last=number == len(lines))
            self.row(names, cells)
        finish(self.reading, self.table, self.times)
        if self.no_numbers:
            self.reading.skipped["cells that are no numbers"] = sum(self.no_numbers.values())
            self.reading.notes.append(f"columns that hold text: {', '.join(sorted(self.no_numbers))}")
        if not names:
            problems.append(Problem(path=str(self.path), offset=0, what="the file is empty", kept="nothing"))
        self.reading.problems += problems + self.damaged[:_MOST_TOLD]
        if more := self.damaged[_MOST_TOLD:]:
            what = f"{len(more)} more lines with a wrong number of cells, this one and later"
            self.reading.problems.append(Problem(path=str(self.path), line=more[0].line, what=what, lost="cells of these lines"))
        return self.reading

    def torn(self, number: int, cells: list[str], names: list[str], *, last: bool) -> list[str]:
        """A line with too few or too many cells: says so, and returns the cells that can be believed."""
        if last and len(cells) < len(names):
            what, lost = "cut at the end: the last line is unfinished", f"its last {len(names) - len(cells) + 1} cells"
        else:
            what, lost = f"{len(cells)} cells in this line, and {len(names)} in the header", "what does not fit"
        self.damaged.append(Problem(path=str(self.path), line=number, what=what, kept=f"{len(self.table)} rows before it", lost=lost))
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
    """The cell as a number; None for text. Python would also read "1_000"."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return NON_FINITE.get(cell.strip().lower())
