"""Reads the history of a training that was saved as one JSON document."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import DEEPEST, is_blank, leaves, number, why_no_number
from postmortem.readers.shared.row_table import RowTable, finish
from postmortem.readers.shared.step_column import COUNTERS, EPOCHS, plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postmortem.core.skipped import Skips
    from postmortem.readers import Content

_LIKELY = later(r'"[^"\\]{1,80}"\s{0,20}:\s{0,20}(?:\[|\{\s{0,20}"0"\s{0,20}:)\s{0,20}"?(?:[-+\d]|NaN|Inf|null)')
_ROWS = re.compile(r"(?:^|:)\s{0,20}\[\s{0,20}\{")
_LARGEST = 64 << 20
"""Bytes; a larger document is a data set, and parsing it to see whether it is a history would take seconds."""
_OF_LISTS = ("", ".log", ".txt")
"""Endings, beside .json, of files that hold a list of objects."""
_FEWEST = 2
"""Values of a history; a list of one is a setting."""
_COUNTS = {*COUNTERS, *EPOCHS}


@reader
class JsonHistory:
    """One JSON document with the history of a training: Keras' ``history.json`` and what other loops save like it.

    Two forms: an object with a list of numbers per metric, ``{"loss": [2.5, 1.25], "val_loss": [2.6, 1.5]}``, also in
    groups (``{"epochs": […], "metrics": {…}}``, whose tags are joined with "/") or with the index as keys
    (``{"loss": {"0": 2.5, "1": 1.25}}``, as pandas writes it); or a list of objects that count,
    ``[{"epoch": 1, "loss": 2.5}, …]``, also as a member of an object (``{"log_history": […]}``). Among the metrics
    must be a loss, and most values of the document must be of the history. The lists are columns of one table, so only
    those that are as long as that of the loss are read; the others are named. The step is found as in a CSV table: a
    list that counts steps or epochs, else the rows are counted. null is no value; bare NaN and Infinity are numbers.
    A list of objects may also be in a file without an ending, as Chainer's ``log`` is, or in a .log or .txt.

    Formats: chainer/training/extensions/log_report.py; keras/src/callbacks/history.py; pandas.DataFrame.to_json,
    with orient "columns" or "records".
    """

    kind: ClassVar[str] = "json"
    priority: ClassVar[int] = 40
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file whose whole content is such a document: its first 4 KiB may show no more than an accuracy."""
        text = decoded(head)[0]
        if path.suffix.lower() != ".json" and not (path.suffix.lower() in _OF_LISTS and _ROWS.match(text.lstrip())):
            return False
        if text.lstrip()[:1] not in ("{", "[") or not (_LIKELY.search(text) or _ROWS.search(text.lstrip())):
            return False
        with suppress(ValueError, RecursionError):
            return bool(_rows(json.loads(text), []))
        with suppress(OSError, ValueError, RecursionError):
            return path.stat().st_size <= _LARGEST and bool(_rows(json.loads(decoded(path.read_bytes())[0]), []))
        return False

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole document."""
        reading = Reading(source=JsonHistory.kind, path=str(path))
        text, reading.problems = decoded(path.read_bytes(), str(path))
        left_out: list[str] = []
        try:
            rows = _rows(json.loads(text), left_out)
        except (ValueError, RecursionError):
            reading.problems.append(
                Problem(path=str(path), what="damaged JSON", kept="nothing", lost="the file", extent="file")
            )
            return reading
        table = RowTable()
        for row in rows:
            _add(row, table, reading.skipped)
        finish(reading, table, [float("nan")] * len(table))
        if left_out:
            what = f"lists with other lengths than that of the loss ({len(rows)}): {', '.join(left_out[:5])}"
            kept = f"{len(rows)} rows"
            reading.problems.append(Problem(path=str(path), what=what, kept=kept, lost="these lists", kind="limit"))
        return reading


def _add(row: dict[str, Any], table: RowTable, skipped: Skips) -> None:
    """Appends a row to the table; what is no number is counted."""
    cells = []
    for name, raw in leaves(row):
        if (value := number(raw)) is not None:
            cells.append((name, value))
        elif is_blank(raw):
            table.blanks[name] += 1
        else:
            skipped[why_no_number(raw)] += 1
    table.add(cells)


def _rows(document: Any, left_out: list[str]) -> list[dict[str, Any]]:
    """The rows of a history, empty if the document is none. The lists that do not fit are added to `left_out`."""
    found = document if isinstance(document, list) else []
    if isinstance(document, dict):
        if rows := _of_columns(document, left_out):
            return rows
        found = next((v for v in document.values() if isinstance(v, list) and v and isinstance(v[0], dict)), [])
    rows = [row for row in found if isinstance(row, dict)]
    names = {name for row in rows for name, value in leaves(row) if number(value) is not None}
    counted = any(plain(name) in _COUNTS for name in names)
    blank = {name for row in rows for name, value in leaves(row) if is_blank(value)}
    return rows if len(rows) == len(found) >= _FEWEST and counted and any(map(_is_loss, names | blank)) else []


def _of_columns(document: dict[str, Any], left_out: list[str]) -> list[dict[str, Any]]:
    """The rows of a document that has a list per metric."""
    columns, others = {}, 0
    for name, value in _columns(document):
        if isinstance(value, list) and value and _numbers(value, none=_is_loss(name)):
            columns[name] = value
        else:
            others += len(value) if isinstance(value, list) else 1
    lengths = [len(values) for name, values in columns.items() if _is_loss(name)]
    n = max(lengths, key=lambda length: (lengths.count(length), length), default=0)
    table = {name: values for name, values in columns.items() if len(values) == n}
    left_out += [f"{name} ({len(values)})" for name, values in columns.items() if len(values) != n]
    if n < _FEWEST or n * len(table) < others or not any(map(_numbers, table.values())):
        return []
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]


def _columns(part: dict[str, Any], prefix: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """The values of a nested object with their keys joined; an object whose keys are 0, 1, … is a list."""
    for key, value in part.items():
        if isinstance(value, dict) and list(value) == [str(i) for i in range(len(value))]:
            yield prefix + key, list(value.values())
        elif isinstance(value, dict) and depth:
            yield from _columns(value, f"{prefix}{key}/", depth - 1)
        else:
            yield prefix + key, value


def _numbers(values: list[Any], none: bool = False) -> bool:
    """Whether a list has numbers (or may have `none`) and, in their place, at most nulls."""
    known = [number(value) for value in values if not is_blank(value)]
    return (bool(known) or none) and None not in known


def _is_loss(name: str) -> bool:
    return role_of(name) in ("loss", "val_loss")
