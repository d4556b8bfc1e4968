"""Values whose name stands in the line above: ``Training loss:`` and below it ``0.5312``."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

if TYPE_CHECKING:
    from postmortem.readers.text.records.record import Row

_FEWEST = 3
"""Pairs of lines that make a style; fewer may be anything."""


@dialect
class NamesAbove(Dialect):
    """``print("Training loss:"); print(loss)``: a line of a known quantity and a colon, and its number in the next.

    Only a number alone in the very next line counts; its position is the one that the log printed before.
    """

    name = "name above the value"
    priority = 56
    content: ClassVar[re.Pattern[str] | None] = re.compile("")
    _name = re.compile(r"\s{0,20}(?P<tag>[^\W\d][\w ./@-]{1,60}?)\s?[:=]\s*$")
    _value = re.compile(rf"\s{{0,20}}(?P<value>{NUMBER}|{NONFINITE})\s?%?\s*$")

    def __init__(self) -> None:
        self.above: dict[int, tuple[int, str]] = {}
        """The last name of each rank, and its line."""

    def sniff(self, sample: str) -> bool:
        lines = pairwise(sample.splitlines())
        return sum(self._tag(a) is not None and self._value.match(b) is not None for a, b in lines) >= _FEWEST

    def _tag(self, text: str) -> str | None:
        found = self._name.match(text)
        return found["tag"] if found is not None and role_of(found["tag"]) is not None else None

    def parse(self, row: Row) -> Record | None:
        if (tag := self._tag(row.text)) is not None:
            self.above[row.rank] = row.line, tag
            return None
        line, tag = self.above.pop(row.rank, (0, ""))
        match = self._value.match(row.text) if tag and row.line == line + 1 else None
        return None if match is None else Record([Value(tag, number(match["value"]), *match.span("value"))])
