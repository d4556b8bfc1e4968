"""What single rows of a log say: by a dialect where one takes them, else by the general miner."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.bulk.templates import Parsed
from postmortem.readers.text.dialects.column_table import ColumnTable
from postmortem.readers.text.lines.blocks import text_of
from postmortem.readers.text.lines.prefixes import labelled, peel
from postmortem.readers.text.records.decimal_commas import decimal_commas, with_dots
from postmortem.readers.text.records.miner import LONGEST_ROW, mine
from postmortem.readers.text.records.record import Record, Row
from postmortem.readers.text.steps.row_store import MAYBE, row_of, stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from postmortem.readers.text.bulk.templates import Template
    from postmortem.readers.text.dialects import Dialect
    from postmortem.readers.text.lines.prefixes import Prefix
    from postmortem.readers.text.steps.row_store import Track

_GLUED = re.compile(
    r"(?<=[\d.\])])(?=(?:step|iter|iteration|epoch|Step|Iter|Iteration|Epoch)\b[ :=#\[(]{0,3}\d|\{'[a-z])|(?<=\d)(?=\[(?:rank|default)\d)"
)
_NUMBER_WORDS = re.compile(r"\d|\bnan\b|\binf", re.IGNORECASE)
_QUIET_LEVELS = {"WARNING", "ERROR", "CRITICAL"}


class Understanding:
    """Understands the rows of one log, one at a time, and counts what explained them. `track` gives tags their codes."""

    def __init__(self, track: Track, dialects: Iterable[type[Dialect]]) -> None:
        self.track = track
        self.dialects: list[Dialect] = [*(d() for d in dialects), ColumnTable()]
        self.names = [*(d.name for d in self.dialects), "general miner"]
        self.active = list(enumerate(self.dialects))
        self.labels = False
        self.year = 1970
        self.commas = False
        """Whether the log writes decimals behind a comma."""
        self.explained: Counter[str] = Counter()
        self.unexplained = 0
        self.cut_rows = 0

    def look(self, head: bytes, year: int) -> None:
        """Learns from the first lines which dialects to try and whether ranks are written in front; `year` is for dates without one."""
        sample = [text_of(line) for line in head.split(b"\n", 400)[:400]]
        self.labels = labelled(sample)
        text = "\n".join(sample)
        self.active = [(i, d) for i, d in enumerate(self.dialects) if d.sniff(text)]
        self.year = year
        self.commas = decimal_commas(text_of(head))

    def records(self, row: bytes, line: int) -> Iterator[tuple[Any, list[int], list[float]]]:
        """Everything that a row says: one `ROW`, the codes of its tags and its values for each of the parts that were glued."""
        if len(row) > LONGEST_ROW:
            self.cut_rows += 1
            row = row[:LONGEST_ROW]
        text = with_dots(text_of(row)) if self.commas else text_of(row)
        for part in _GLUED.split(text) if _GLUED.search(text) else (text,):
            record, dialect, prefix, _ = self._part(part, line)
            if dialect >= 0 and not (record is None and not part.strip()):
                self.explained[self.names[dialect]] += 1
            elif record is None and _NUMBER_WORDS.search(part):
                self.unexplained += 1
            if record is not None:
                yield self._stored(record, dialect, prefix, line)

    def _part(self, part: str, line: int) -> tuple[Record | None, int, Prefix, str]:
        text, prefix = peel(part, labels=self.labels, year=self.year)
        record, dialect = self._understand(text, prefix, line)
        return (record if record is not None and _says_something(record) else None), dialect, prefix, text

    def _stored(self, record: Record, dialect: int, prefix: Prefix, line: int) -> tuple[tuple[Any, ...], list[int], list[float]]:
        wall = prefix.wall_time if prefix.wall_time is not None else record.wall_time
        codes = [self.track.code(stored(v.tag, record)) for v in record.values] + [self.track.code(MAYBE + tag) for tag in record.absent]
        values = [v.number for v in record.values] + [np.nan] * len(record.absent)
        return row_of(record, line, _rank(prefix, record), np.nan if wall is None else wall, dialect, len(codes)), codes, values

    def alone(self, row: bytes) -> Parsed | None:
        """What a row says regardless of the rows before it; None where it may depend on them, or is two rows in one."""
        try:
            text = row.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if self.commas and text != with_dots(text):
            return None
        rest, prefix = peel(text, labels=self.labels, year=self.year)
        if _GLUED.search(text) or any(d.content is not None and d.content.match(rest) for _, d in self.active):
            return None
        record, dialect = self._understand(rest, prefix, 0)
        offset = len(row) - len(rest.encode())
        if record is not None and record.once:
            return None
        if record is None or not _says_something(record):
            return Parsed(None, None, [], [], dialect, prefix, offset)
        found, codes, values = self._stored(record, dialect, prefix, 0)
        return Parsed(record, found, codes, values, dialect, prefix, offset)

    def rank_of(self, row: bytes) -> int | None:
        prefix = peel(text_of(row), labels=self.labels, year=self.year)[1]
        return _rank(prefix, Record())

    def wall_time(self, row: bytes) -> float | None:
        """The time that stands in front of a row, in seconds since the epoch."""
        return peel(text_of(row), labels=self.labels, year=self.year)[1].wall_time

    def count(self, template: Template, n: int) -> None:
        if template.dialect >= 0:
            self.explained[self.names[template.dialect]] += n
        elif template.numbers:
            self.unexplained += n

    def _understand(self, text: str, prefix: Prefix, line: int) -> tuple[Record | None, int]:
        """What a row says, and by which dialect; None with a dialect: a row of its format that says nothing."""
        if not text or text.isspace():
            return None, -1
        row = Row(text, prefix, line, -1 if prefix.best_rank is None else prefix.best_rank)
        for i, dialect in self.active:
            if dialect.needles and not any(n in text for n in dialect.needles):
                continue
            record = dialect.parse(row)
            if record is not None:
                return record, i
        if prefix.level in _QUIET_LEVELS:
            return None, -1
        record = mine(text)
        return record, len(self.dialects) if record is not None else -1


def _says_something(record: Record) -> bool:
    return bool(record.values) or bool(record.absent) or record.step is not None or record.n is not None or record.epoch is not None


def _rank(prefix: Prefix, record: Record) -> int:
    """The global rank; torchrun's local rank only where nothing better is known."""
    for rank in (prefix.rank, prefix.task, record.rank, prefix.local_rank):
        if rank is not None:
            return rank
    return -1
