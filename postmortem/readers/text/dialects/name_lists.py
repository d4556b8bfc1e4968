"""Rows that print a list of names and then the list of their values."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number


@dialect
class NameLists(Dialect):
    """``Iter 10  [Avg. Loss, Loss] : [0.52, 0.61]``, also ``[Loss], [Val loss]: [0.5, 0.6] [0.7, 0.8], 0``.

    Training loops of forecasting models print so. The names and values of several lists are paired in their order; a
    row with more or fewer values than names, or without a known quantity, is none of this style. What stands before the
    lists is read as any other row.
    """

    name = "name lists"
    priority = 26
    needles: ClassVar[tuple[str, ...]] = ("]:", "] :")
    _names = re.compile(r"\[(?=[A-Za-z])[^\[\]:=]{1,200}\](?:, {0,3}\[(?=[A-Za-z])[^\[\]:=]{1,200}\]){0,5} ?: ?(?=\[)")
    _list = re.compile(r"\[([^\[\]]{1,400})\]")
    _number = re.compile(rf"{NUMBER}|{NONFINITE}")

    def parse(self, row: Row) -> Record | None:
        head = self._names.search(row.text)
        if head is None:
            return None
        names = [name.strip() for part in self._list.findall(head[0]) for name in part.split(",")]
        values: list[Value] = []
        for part in self._list.finditer(row.text, head.end()):
            numbers = list(self._number.finditer(row.text, part.start() + 1, part.end() - 1))
            if len(numbers) != part[1].count(",") + 1 or len(values) + len(numbers) > len(names):
                return None
            values += [
                Value(name, number(found[0]), *found.span())
                for name, found in zip(names[len(values) :], numbers, strict=False)
            ]
        if len(values) != len(names) or not any(role_of(name) for name in names):
            return None
        record = mine(row.text[: head.start()], demand=False) or Record()
        record.values += values
        return record
