"""Rows that print several names and then as many values: ``loss/acc: 0.51/0.83``, ``IS, FID: 1.7, 341.4``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.patterns import later
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.step_words import SPLITS, position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

if TYPE_CHECKING:
    from collections.abc import Iterator


_VALUE = rf"(?:(?=[-+\d]{{0,20}}\.|\d+e){NUMBER}|{NONFINITE})"


def _groups(sign: str, name: str) -> re.Pattern[str]:
    """Pattern of names and values, both joined by `sign`; `name` is the class of characters of a name."""
    return later(
        rf"(?<![\w.@\-/,])(?P<names>[A-Za-z][{name}]{{0,30}}(?:{sign}[A-Za-z][{name}]{{0,30}}){{1,5}})"
        rf"\s?[:=]\s?(?P<values>{_VALUE}(?:{sign}{_VALUE}){{1,5}})(?![\w./%])"
    )


_JOINED = {sign: _groups(sign, name) for sign, name in ((r"\s?/\s?", r"\w@.\-"), (r",\s", r"\w@.\-/"))}
_WORD = later(r"(?:^|[^\w.\-])([A-Za-z][\w\-]{0,20}) $")


@dialect
class JoinedNames(Dialect):
    """``Epoch 5  IS, FID: 1.666, 341.353``, ``Epoch 5 train loss/acc: 0.51/0.83, val loss/acc: 0.62/0.77``.

    The names are paired with the values in their order. There are as many of both, between the same signs, and no
    value is a whole number, which may count or be the total of a share. A word for the data before the names belongs to
    each of them; what else stands in the row is read as any other.
    """

    name = "joined names"
    priority = 28
    needles: ClassVar[tuple[str, ...]] = ("/", ", ")

    def parse(self, row: Row) -> Record | None:
        values: list[Value] = []
        rest = list(row.text)
        for group, start, sign in _found(row.text):
            split, at = row.text[start : group.start()], group.start("values")
            names, printed = (re.split(sign, group[part]) for part in ("names", "values"))
            if len(names) != len(printed) or any(position(name) is not None for name in names):
                continue
            for name, text in zip(names, printed, strict=True):
                at = row.text.index(text, at)
                values.append(Value(f"{split}{name}", number(text), at, at + len(text)))
                at += len(text)
            rest[start : group.end()] = " " * (group.end() - start)
        if not values:
            return None
        record = mine("".join(rest), demand=False) or Record()
        record.values += values
        return record


def _found(text: str) -> Iterator[tuple[re.Match[str], int, str]]:
    """The groups of a row, each with the place where its name begins, which may be a word for the data, and the sign.

    After any other word the first name may be more than the last word of a sentence.
    """
    for sign, groups in _JOINED.items():
        for group in groups.finditer(text):
            before = _WORD.search(text[max(0, group.start() - 30) : group.start()])
            if before is None:
                yield group, group.start(), sign
            elif before[1].lower() in SPLITS:
                yield group, group.start() - len(before[1]) - 1, sign
