"""Parses single rows of a log: by the first dialect that takes them, else by the general miner."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.bulk.templates import Parsed
from postmortem.readers.text.dialects import DIALECTS
from postmortem.readers.text.dialects.column_table import ColumnTable
from postmortem.readers.text.lines.blocks import encoding_of, text_of
from postmortem.readers.text.lines.prefixes import labelled, peel
from postmortem.readers.text.records.decimal_commas import decimal_commas, with_dots
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row
from postmortem.readers.text.records.tokens import LONGEST_ROW
from postmortem.readers.text.steps.row_store import Mark, Tag, row_of, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from postmortem.readers.text.bulk.templates import Template
    from postmortem.readers.text.dialects import Dialect
    from postmortem.readers.text.lines.prefixes import Prefix
    from postmortem.readers.text.steps.row_store import RowStore

_GLUED = re.compile(  # a pattern that begins with characters is searched for faster than one with a look behind
    r"[\d.\])](?=(?:step|iter|iteration|epoch|Step|Iter|Iteration|Epoch|rank|Rank)\b[ :=#\[(]{0,3}\d|\{'[a-z])"
    r"|\d(?=\[(?:rank|default)\d)"
)
_BAR = re.compile(r"\d/[\d?]{1,15} \[[^\]\[]{5,60}(?:it/s|s/it)[^\]\[]{0,300}\](?=\s{0,40}[A-Za-z\d]\S*[ :=][^\n]*\d)")
"""A bar that a print follows without a line break, as where the bar was not closed."""
_COUNTED = re.compile(
    r"(?P<before>\s{0,4}[\[(]?(?:[A-Za-z]{1,12}[ :#=]{0,3})?)(?P<n>\d{1,9})(?P<after>[\])]?\W{0,3}[A-Za-z]\w*\W)"
)
"""A position and the first name after it, at the start of a line."""
_NUMBER_WORDS = re.compile(r"\d|\bnan\b|\binf", re.IGNORECASE)
_QUIET_LEVELS = {"WARNING", "ERROR", "CRITICAL"}


class RowParser:
    """Parses the rows of one log, one at a time, and counts which parser recognised them.

    `store` gives tags their codes.
    `explained` counts rows by dialect, `unexplained` rows with numbers that no parser recognised.
    """

    def __init__(self, store: RowStore, dialects: Iterable[type[Dialect]]) -> None:
        self.store = store
        self.dialects: list[Dialect] = [*(d() for d in dialects), ColumnTable()]
        self.names = [*(d.name for d in self.dialects), "general miner"]
        self.active = list(enumerate(self.dialects))
        self.labels = False
        self.year = 1970
        self.commas = False
        """The log writes decimal commas."""
        self.faults: list[tuple[str, int]] = []
        """Dialects that failed, with the line."""
        self.explained: Counter[str] = Counter()
        self.unexplained = 0
        self.cut_rows: set[int] = set()

    def look(self, head: bytes, year: int) -> None:
        """Learn from the first lines which dialects to try and whether lines begin with a rank.

        `year` completes dates that lack one.
        """
        # bars leave nothing but line ends behind in what W&B keeps of a terminal
        sample = [text_of(line) for line in islice((x for x in head.split(b"\n") if x and not x.isspace()), 400)]
        self.labels = labelled(sample)
        text = "\n".join(sample)
        self.active = [(i, d) for i, d in enumerate(self.dialects) if self._may_occur(d, text)]
        self.year = year
        self.commas = decimal_commas(text_of(head))

    def _may_occur(self, dialect: Dialect, text: str) -> bool:
        try:
            return dialect.sniff(text)
        except Exception as error:  # noqa: BLE001 - as in `_parse`
            self._drop(dialect, "sniff", error, 1)
            return False

    def _drop(self, dialect: Dialect, method: str, error: Exception, line: int) -> None:
        """Tries `dialect` on no further row: it failed at `line` (0: not known which)."""
        self.active = [(i, d) for i, d in self.active if d is not dialect]
        self.faults.append((DIALECTS.fault(dialect, method, error), line))

    def records(self, row: bytes, line: int) -> Iterator[tuple[Any, list[int], list[float]]]:
        """The records of a row: one `ROW`, the codes of its tags and its values, for each part of a glued row."""
        if len(row) > LONGEST_ROW:
            self.cut_rows.add(line)
            row = row[:LONGEST_ROW]
        text = with_dots(text_of(row)) if self.commas else text_of(row)
        for part in _pieces(text):
            record, dialect, prefix, _ = self._part(part, line)
            if dialect >= 0 and not (record is None and not part.strip()):
                self.explained[self.names[dialect]] += 1
            elif record is None and _NUMBER_WORDS.search(part):
                self.unexplained += 1
            if record is not None:
                yield self._stored(record, dialect, prefix, line)

    def _part(self, part: str, line: int) -> tuple[Record | None, int, Prefix, str]:
        text, prefix = peel(part, labels=self.labels, year=self.year)
        record, dialect = self._parse(text, prefix, line)
        return (record if record is not None and _has_content(record) else None), dialect, prefix, text

    def _stored(
        self, record: Record, dialect: int, prefix: Prefix, line: int
    ) -> tuple[tuple[Any, ...], list[int], list[float]]:
        wall = prefix.wall_time if prefix.wall_time is not None else record.wall_time
        tags = [tag_of(v.tag, record) for v in record.values] + [Tag(name, Mark.ABSENT) for name in record.absent]
        codes = [self.store.code(tag) for tag in tags]
        values = [v.number for v in record.values] + [np.nan] * len(record.absent)
        return (
            row_of(record, line, _rank(prefix, record), np.nan if wall is None else wall, dialect, len(codes)),
            codes,
            values,
        )

    def alone(self, row: bytes) -> Parsed | None:
        """The parse of a row regardless of the rows before it; None if it may depend on them, or if it is two rows."""
        text = text_of(row)
        if self.commas and text != with_dots(text):
            return None
        rest, prefix = peel(text, labels=self.labels, year=self.year)
        if len(_pieces(text)) > 1 or any(d.content is not None and d.content.match(rest) for _, d in self.active):
            return None
        record, dialect = self._parse(rest, prefix, 0)
        offset = len(row) - len(rest.encode(encoding_of(row)))
        if record is not None and record.once:
            return None
        if record is None or not _has_content(record):
            return Parsed(None, None, [], [], dialect, prefix, offset)
        found, codes, values = self._stored(record, dialect, prefix, 0)
        return Parsed(record, found, codes, values, dialect, prefix, offset)

    def rank_of(self, row: bytes) -> int | None:
        """The rank in the prefix of a row; -1 if it has none."""
        prefix = peel(text_of(row), labels=self.labels, year=self.year)[1]
        return _rank(prefix, Record())

    def wall_time(self, row: bytes) -> float | None:
        """The time in the prefix of a row, in seconds since the epoch; None if it has none."""
        return peel(text_of(row), labels=self.labels, year=self.year)[1].wall_time

    def count(self, template: Template, n: int) -> None:
        """Count n rows that were read by a template."""
        if template.dialect >= 0:
            self.explained[self.names[template.dialect]] += n
        elif template.numbers:
            self.unexplained += n

    def _parse(self, text: str, prefix: Prefix, line: int) -> tuple[Record | None, int]:
        """The record of a row and its dialect, -1 if nothing took the row; a dialect may take rows without a record."""
        if not text or text.isspace():
            return None, -1
        row = Row(text, prefix, line, -1 if prefix.best_rank is None else prefix.best_rank)
        for i, dialect in self.active:
            if dialect.needles:
                for needle in dialect.needles:  # any() takes three times as long, and this is done for every row
                    if needle in text:
                        break
                else:
                    continue
            try:
                record = dialect.parse(row)
            except Exception as error:  # noqa: BLE001 - a fault of one dialect costs its rows, not the log
                self._drop(dialect, "parse", error, line)
                continue
            if record is not None:
                return record, i
        if prefix.level in _QUIET_LEVELS:
            return None, -1
        record = mine(text)
        return record, len(self.dialects) if record is not None else -1


def _pieces(text: str) -> list[str]:
    """The rows that a line holds, one after the other without a line break between them."""
    if "]" in text and (bar := _BAR.search(text)) is not None:
        return [text[: bar.end()], *_pieces(text[bar.end() :])]
    cuts = [found.end() for found in _GLUED.finditer(text)] or _next_counts(text)
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])] if cuts else [text]


def _next_counts(text: str) -> list[int]:
    """Where a row begins that counts on: ``[10] loss: 0.3 [11] loss: 0.2``, of a print that ends no line."""
    first = _COUNTED.match(text)
    if first is None or text.find(first["after"], first.end()) < 0:
        return []
    again = re.compile(rf"{re.escape(first['before'].lstrip())}(\d{{1,9}}){re.escape(first['after'])}")
    found = list(again.finditer(text, first.end()))
    counts = [int(first["n"]), *(int(match[1]) for match in found)]
    gaps = {b - a for a, b in pairwise(counts)}
    return [match.start() for match in found] if len(gaps) == 1 and gaps.pop() > 0 else []


def _has_content(record: Record) -> bool:
    return (
        bool(record.values)
        or bool(record.absent)
        or record.step is not None
        or record.n is not None
        or record.epoch is not None
    )


def _rank(prefix: Prefix, record: Record) -> int:
    """The global rank; torchrun's local rank only where nothing better is known."""
    for rank in (prefix.rank, prefix.task, record.rank, prefix.local_rank):
        if rank is not None:
            return rank
    return -1
