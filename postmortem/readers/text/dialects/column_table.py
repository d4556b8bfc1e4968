"""Tables of any program: rows under a header that names the columns. Asked after all other dialects."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.step_words import SPLITS, position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_TIMES = {"time", "date", "datetime", "timestamp", "clock", "when"}
_SCALE = {"K": 1e3, "M": 1e6, "B": 1e9}
_CELL = re.compile(rf"(?P<value>{NUMBER}|{NONFINITE})(?P<unit>%| ?[a-zA-Zµ]{{1,4}})?(?: \([\d.]+ ?%\))?$")


class ColumnTable(Dialect):
    """Rows under a header with column names: fastai, nerfstudio, PrettyTable, CSV on the terminal, hand-made tables.

    Columns are separated by two or more blanks, tabs, bars, commas or semicolons, or by single blanks if every name is
    one word; names may be in quotes. The first column is the index of a data frame where it has no name. A column named
    like a step or an epoch is the position; a time or other text in a cell is passed over, and the word of a split
    (``| val | 100 | 2.31 |``) names the metrics. A header of split words (``Training | Validation``) names the columns
    of rows that begin with the metric.
    """

    name = "table"
    priority = 60
    content: ClassVar[re.Pattern[str] | None] = re.compile(
        rf"\s*+[|│┃]?\s*+(?:{NUMBER}|{NONFINITE}|\d++/\d++)(?: ?[%a-zA-Z]{{1,4}})?(?: \([\d.]+ ?%\))?"  # a cell
        r"(?:\s\s|\t|,|;|\s*+[|│┃])"  # and its end
        rf"|\s*+(?:{NUMBER}\s++){{3}}"  # cells between single blanks
        r"|\s*+[|│┃][^|│┃]{1,40}+[|│┃]"  # a first cell of text between bars: a time, a phase
        r"|\s*+\d++(?:[:hms]\d++)++s?(?:\s\s|\t|,|\s*+[|│┃])"  # a time that has passed
        r"|(?=[^\d]*+$)(?=(?:[^,;|\t│┃]*+[,;|\t│┃])|(?:.{0,400}?\S\s\s++){2})"  # names between separators
        r"(?i:.*(?:epoch|step|iter|loss|acc|lr\b|m?ap\b|total\b|score|psnr))"
        r"|\s*+(?i:train|val|test|dev|eval)\w*+\s*+\|\s*+[A-Za-z]++\s*+$"  # splits between bars, and metrics below
        rf"|[A-Za-z_][\w./@\-]*+\s++\|\s*+(?:{NUMBER}|{NONFINITE}|N/A)\s*+\|"
    )
    _name = re.compile(
        r"(?!.*(?:^|[ (:=])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?[%)]?(?: |$))[A-Za-z_#∇][\w ./@()%#\-\[\]|]{0,40}$"
    )

    def __init__(self) -> None:
        self.header: dict[int, tuple[str, list[str], str]] = {}
        """What separates the columns, their names, and the line, of each rank."""
        self.splits: dict[int, list[str]] = {}

    def parse(self, row: Row) -> Record | None:
        text = row.text.strip()
        if "|" in text and (record := self._by_split(row, text)) is not None:
            return record
        if text[:1].isdigit() or text[:1] in "|│┃-.n":
            record = self._under_header(row, text)
            if record is not None:
                return record
        for sign in ("|", ",", ";", "  ", " "):
            if sign == " " and ("  " not in text or len(text.split()) < 5):
                continue
            if sign in text or (sign == "  " and "\t" in text) or (sign == "|" and ("│" in text or "┃" in text)):
                names = [name.strip("'\"") for name in _cells(text, sign)]
                if sign in ",;" and not names[0] and not any(map(position, names)):
                    names[0] = "step"  # the index of a data frame, as in the CSV that pandas writes
                if (
                    len(names) >= (2 if sign == "|" or position(names[0]) else 3)
                    and len(set(names)) == len(names)
                    and all(self._name.match(n) and len(n.split()) <= 5 for n in names)
                    and (self._metrics(names) or (sign == "|" and _counts(names[0])) or _between_tabs(names, text))
                ):
                    self.header[row.rank] = (sign, names, row.text)
                    return Record()
                if sign == "  " and _other_head(names):
                    self.header.pop(row.rank, None)
        return None

    def _under_header(self, row: Row, text: str) -> Record | None:
        """The record of a row below a header of as many columns; None if there is none."""
        if row.rank not in self.header:
            return None
        sign, names, line = self.header[row.rank]
        cells = _cells(text, sign)
        if names[0] == "#" and len(cells) == len(names) - 1:
            names = names[1:]  # it marks the header as a comment
        if len(cells) != len(names) and sign == "  ":  # wide columns that touch
            names, cells = " ".join(names).split(), text.split()
        if len(cells) == len(names) - 1 and names[0].lower() in _TIMES:
            names = names[1:]  # the time at the start of the row was taken for its prefix
        if len(cells) == len(names) + 1 and cells[0].isdigit() and sign == "  ":
            names = ["step", *names]  # the index of a data frame, whose column has no name
        if len(cells) < len(names) and sign in ("  ", " "):
            cells = _below(line, row.text, names)
        return self._row(names, cells) if len(cells) == len(names) else None

    def _by_split(self, row: Row, text: str) -> Record | None:
        """A header of split words, or a row under one: the metric's name, then its value in each split."""
        cells = [c.strip() for c in text.split("|")]
        if len(cells) >= 2 and all(c.lower() in SPLITS for c in cells):
            self.splits[row.rank] = cells
            return Record()
        splits = self.splits.get(row.rank, [])
        if len(cells) != len(splits) + 1 or not splits or self._name.match(cells[0]) is None:
            return None
        found = [(split, _CELL.match(cell)) for split, cell in zip(splits, cells[1:], strict=True)]
        values = [Value(f"{split} {cells[0]}", number(match["value"])) for split, match in found if match is not None]
        return Record(values) if values else None

    @staticmethod
    def _metrics(names: list[str]) -> bool:
        """Whether these are columns of metrics: two known quantities, or one and a position; not files or layers."""
        known = sum(role_of(_clean(n)) is not None for n in names)
        places = sum((position(_clean(n, "#" in names)) or ("", 0))[0] in ("step", "epoch") for n in names)
        return (known >= 2 and len(names) > 2) or (known >= 1 and places >= 1)

    @staticmethod
    def _row(names: list[str], cells: list[str]) -> Record | None:
        record = Record()
        numbers = 0
        split = next((cell.lower() for cell in cells if cell.lower() in SPLITS), "")  # "| val | 100 | 2.31 |"
        for name, cell in zip(names, cells, strict=True):
            name = _clean(name, "#" in names)
            match = _CELL.match(cell)
            where = position(name)
            if match is None:
                fraction = re.match(r"(\d{1,12})/(\d{1,12})$", cell)
                if fraction and where and where[0]:
                    if where[0] == "epoch":
                        record.epoch, record.epochs = float(fraction[1]), float(fraction[2])
                    else:
                        record.n, record.total, record.level = float(fraction[1]), float(fraction[2]), where[1]
                    numbers += 1
                continue
            numbers += 1
            value = number(match["value"])
            if where is not None:
                if where[0] in ("step", "epoch") and (match["unit"] or "").isalpha() and match["unit"] not in _SCALE:
                    return None  # "2c" in the first column: the row of another table, whose rows have names
                if where[0] == "epoch":
                    record.epoch = value
                elif where[0] == "step" and where[1] > record.level:
                    record.step, record.level = value, where[1]
                continue
            unit = (match["unit"] or "").strip()
            name = f"{split} {name}" if split and role_of(name) not in ("lr", "epoch") else name
            record.values.append(Value(name, value * _SCALE.get(unit, 1.0) if role_of(name) != "memory" else value))
        return record if numbers >= max(2, len(cells) // 2) and record.values else None


def _other_head(names: list[str]) -> bool:
    """Whether names are the head of a table without a known metric: the rows below it are none of the table before."""
    return len(names) >= 4 and all(re.fullmatch(r"[A-Za-z][\w.@/%\-]{0,15}", name) for name in names)


def _counts(name: str) -> bool:
    """Whether a first column between bars is the step or the epoch: the others are values there, of any name."""
    return (position(_clean(name)) or ("", 0))[0] in ("step", "epoch")


def _between_tabs(names: list[str], text: str) -> bool:
    """Whether names of one word, one of them known, are separated by tabs: no sentence has those."""
    words = all(re.fullmatch(r"[A-Za-z][\w.@/%\-]*", name) for name in names)
    return words and text.count("\t") == len(names) - 1 and any(role_of(name) is not None for name in names)


def _cells(text: str, sign: str) -> list[str]:
    if sign == " ":
        return text.split()
    if sign == "  ":
        return [c.strip() for c in re.split(r"\s{2,}|\t", text.strip())]
    return (
        [c.strip() for c in text.strip().strip("|│┃").split(sign)]
        if sign != "|"
        else [c.strip() for c in re.split(r"[|│┃]", text.strip().strip("|│┃"))]
    )


def _below(header: str, row: str, names: list[str]) -> list[str]:
    """The cells of a row in which columns are blank ("best *" in some rows), each below its name; [] if one is not."""
    columns, at = [], 0
    for name in names:
        start = header.find(name, at)
        at = start + len(name)
        columns.append((start, at))
    cells = [""] * len(names)
    for found in re.finditer(r"\S+", row):
        below = [i for i, (start, end) in enumerate(columns) if found.start() < end and start < found.end()]
        if len(below) != 1 or cells[below[0]]:
            return []
        cells[below[0]] = found[0]
    return cells


def _clean(name: str, counted: bool = False) -> str:
    """``Step (% Done)`` is the step. With a column ``#`` (`counted`) that is the step, and ``E`` the epoch (spaCy)."""
    if counted and name in ("#", "E"):
        return "step" if name == "#" else "epoch"
    return re.sub(r"\s*\(%[^)]*\)$", "", name)
