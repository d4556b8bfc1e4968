"""Decimal commas: detects a log that writes 0,4312 for 0.4312, and rewrites its lines with dots.

One row alone is often ambiguous (2,506 is two and a half, or two thousand), so the whole log decides.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from postmortem.core.roles import role_of
from postmortem.readers.text.records.names import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_BEFORE, _AFTER = r"(?<![\w.,:/(\[\-])[-+]?", r"(?!\d|,\d|\.\d)"
_SURE = re.compile(rf"{_BEFORE}(?:0(?P<a>[.,])(?P<zero>\d++)|\d{{1,9}}(?P<b>[.,])(?:\d\d?|\d{{4,}}+)){_AFTER}")
"""Numbers whose mark cannot be a thousands separator."""
_BETWEEN = re.compile(r"\d,\d")
_NO_DIGIT = re.compile(r"[^\d]++$")
_COMMA = re.compile(rf"{_BEFORE}\d{{1,9}},\d++{_AFTER}")
_GROUPED = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:\.\d{3}){1,5}+(?:,\d++)?(?![\w.])")
"""Dots between thousands."""


def decimal_commas(text: str) -> bool:
    """Whether more than a third of a text's decimal numbers have a comma.

    Numbers of known quantities (loss, lr, accuracy) count; others only with two or more decimals after a zero, because
    ``devices=0,1`` is a list.
    """
    lines = text.split("\n")
    with_comma = [line for line in lines if _BETWEEN.search(line)]
    commas = _marks(with_comma)[","] if with_comma else 0
    return commas > 0 and 2 * commas > _marks(lines)["."]  # few logs get as far as to all lines


def _marks(lines: Iterable[str]) -> Counter[str]:
    """How many decimal numbers of the lines have each of the two marks."""
    marks: Counter[str] = Counter()
    for line in lines:
        end = 0
        for found in _SURE.finditer(line):
            gap = _NO_DIGIT.search(line, max(end, found.start() - 100), found.start())
            named = name_of(gap[0]) if gap is not None else None
            if named is not None and (
                role_of(named.name) is not None or (named.strong and len(found["zero"] or "") > 1)
            ):
                marks[found["a"] or found["b"]] += 1
            end = found.end()
    return marks


def with_dots(text: str) -> str:
    """A line of such a log with decimal dots, of the same length.

    Dots between thousands are removed if the line has no other dots.
    """
    if not any("." in (found["a"], found["b"]) for found in _SURE.finditer(text)):
        text = _GROUPED.sub(_ungrouped, text)
    return _COMMA.sub(lambda m: m[0].replace(",", "."), text)


def _ungrouped(match: re.Match[str]) -> str:
    return match[0].replace(".", "").rjust(len(match[0]))
