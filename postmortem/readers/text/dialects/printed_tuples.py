"""Rows that a print of Python 2 leaves of several arguments: ``('Epoch: ', 3, 'loss: ', 0.5)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER

if TYPE_CHECKING:
    from postmortem.readers.text.records.record import Record, Row


@dialect
class PrintedTuples(Dialect):
    """``('Epoch: ', 3)``, ``('g loss', [array(0.95, dtype=float32), array(0.11, dtype=float32)], 'd loss', 0.5)``.

    The texts name the numbers after them; of a list, as Keras returns the loss and its metrics, the first number is
    the loss, and the others have no name. What is left of the row is read as any other.
    """

    name = "printed tuples"
    priority = 27
    needles: ClassVar[tuple[str, ...]] = ("('", '("')
    _row = re.compile(r"\s*+\((?=['\"]).{3,4000}\)\s*+$")
    _text = re.compile(r"(?P<quote>['\"])(?P<said>(?:(?!(?P=quote))[^\\]|\\.){0,200})(?P=quote)")
    _number = re.compile(
        rf",\s{{0,4}}(?:\[\s{{0,4}})?(?:[A-Za-z_][\w.]{{0,30}}\()?(?P<value>{NUMBER}|{NONFINITE})(?=[,\)\]]|$)"
    )

    def parse(self, row: Row) -> Record | None:
        if self._row.match(row.text) is None:
            return None
        blanks = [" "] * len(row.text)
        named = 0
        for text in self._text.finditer(row.text):
            said = re.sub(r"\\.", "  ", text["said"])
            blanks[text.start("said") : text.end("said")] = said
            if (value := self._number.match(row.text, text.end())) is not None:
                if said.rstrip()[-1:] not in (":", "="):
                    blanks[text.end() - 1] = ":"
                blanks[value.start("value") : value.end("value")] = value["value"]
                named += 1
        return mine("".join(blanks)) if named else None
