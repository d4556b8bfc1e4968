"""The last line of a text that ends without a line end: whole, or cut while it was written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

LastLine = Literal["whole", "cut", "unknown"]
NOT_USED = "no line end after the last line: its last number may be truncated and is not used"
CUT = "truncated: the last line is incomplete"
_ENOUGH = 3
"""So many numbers of one width show that all are written with it."""
_DIGITS = re.compile(r"\d+")
_CLOSED = re.compile(r"\d\.\d+(?:[eE][-+]?\d+)?[.,]$")
"""A number with decimals and the end of a clause behind it: ``val loss is 0.0297.``"""
_OF_NUMBERS = "0123456789.,eE+-"


def last_number(text: str, before: Sequence[str]) -> LastLine:
    """Whether a text that may be cut at its end holds its last number whole, by the texts that stood in its place.

    With a fixed number of decimals a shorter one is cut; where their number varies, nobody knows.
    """
    if without_last_number(text) == text:
        return "whole"
    widths = {len(_final(other)) for other in before if _final(other)}
    if len(before) < _ENOUGH or len(widths) != 1:
        return "unknown"
    return "whole" if widths == {len(_final(text))} else "cut"


def last_line(line: str, before: Sequence[str]) -> LastLine:
    """Whether a line without a line end is whole, by the lines before it. One of another kind counts as whole.

    A line that is all there is may be cut anywhere, so that nobody knows of a number at its end.
    """
    if not before:
        return last_number(line, before)
    kind = _DIGITS.sub("0", line)
    kinds = [_DIGITS.sub("0", other) for other in before]
    if alike := [other for other, its in zip(before, kinds, strict=True) if its == kind]:
        return last_number(line, alike)
    return "cut" if kind.strip() and any(its.startswith(kind) for its in kinds) else "whole"


def without_last_number(line: str) -> str:
    """The line without the number, or the beginning of one, at its end. A second point is no part of a number."""
    if _CLOSED.search(line[-40:]):
        return line
    before = line.rstrip(_OF_NUMBERS)
    return before if any(c in "0123456789+-" for c in line[len(before) :]) else line


def _final(text: str) -> str:
    """The last run of digits of a text that ends with one."""
    return text[len(text.rstrip("0123456789")) :]
