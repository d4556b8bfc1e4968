"""Rows that a console wrapped at its width: the rest of a row stands in the lines below it, indented."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine

if TYPE_CHECKING:
    from postmortem.readers.text.records.record import Record, Row

_LONGEST_TAIL = 200


@dialect
class WrappedRows(Dialect):
    """rich's log handler: ``[01/02/26 10:00:01] INFO     step 10 | loss 2.31 | learning``, and below ``rate 1e-4``.

    Format: rich/logging.py, with rich/_log_render.py: a column of the time, one of the level, and the message wrapped
    between words within its own column. A value belongs to the row that prints its number; the words at the end of the
    line above it are part of its name, and what that row says of step and data holds for it.
    """

    name = "wrapped rows"
    priority = 25
    content: ClassVar[re.Pattern[str] | None] = re.compile("")
    _wrapped = re.compile(
        r"^(?:\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\]| {19}) (?:DEBUG|INFO|WARNING) {4,6}\S.*\n {29,32}\S", re.MULTILINE
    )
    _continued = re.compile(r" {26,34}(?=\S)")
    _source = re.compile(r" {1,80}[\w\-]{1,60}\.py:\d{1,6}\s*$")
    _logger = re.compile(r"[\w.]{1,60} - (?=[A-Za-z])")
    _level = re.compile(r" {20}(?:DEBUG|INFO|WARNING) {4,6}(?=\S)")

    def __init__(self) -> None:
        self.head: Record | None = None
        self.tail = ""
        self.line = 0

    def sniff(self, sample: str) -> bool:
        return self._wrapped.search(sample) is not None

    def parse(self, row: Row) -> Record | None:
        if row.text.startswith(" " * 26) and self.line + 1 == row.line and (indent := self._continued.match(row.text)):
            self.line = row.line
            return self._rest(self._source.sub("", row.text[indent.end() :]))
        level = self._level.match(row.text)
        text = row.text[level.end() if level else 0 :]
        text = self._source.sub("", text)
        text = text[logger.end() :] if (logger := self._logger.match(text)) else text
        self.line, self.tail, self.head = row.line, _unfinished(text), mine(text, demand=False)
        if level is None and len(text) == len(row.text):
            return None
        return mine(text)

    def _rest(self, text: str) -> Record | None:
        """The record of a line that goes on with the row above; positions in it are not positions in the row."""
        joined = f"{self.tail} {text}" if self.tail else text
        self.tail = _unfinished(joined)
        record = mine(joined, demand=False)
        if record is None:
            return None
        head = self.head or record
        for name in ("step", "level", "n", "total", "epoch", "epochs", "split"):
            if getattr(record, name) in (None, 0, "") and getattr(head, name):
                setattr(record, name, getattr(head, name))
        record.at, record.values = {}, [v._replace(start=-1, end=-1) for v in record.values]
        self.head = head if head.step is not None else record
        return record


def _unfinished(text: str) -> str:
    """What follows the last separator of a line, unless it already ends in a number."""
    tail = re.split(r"[|,;]", text[-_LONGEST_TAIL:])[-1].strip()
    return "" if re.search(r"\d\S{0,8}$", tail) or ("(step" in tail and tail.endswith(")")) else tail
