"""The last line of a text that ends without a line end: whole, or cut while it was written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Sequence

LastLine = Literal["whole", "cut", "unknown"]
NOT_USED = "no line end after the last line: its last number may be truncated and is not used"
NO_END = "no line end after the last line, which is whole by what stands before it"
CUT = "truncated: the last line is incomplete"
_ENOUGH = 3
"""So many numbers of one width show that all are written with it."""
_EXACT = 12
"""Decimals of a number of which a cut changes nothing that matters, unless an exponent was to follow."""
_EXPONENT = later(r"\d[eE][-+]?\d+$")
_MANY, _NEARLY_ALL = 8, 0.9
"""So many numbers of which nearly all have no more decimals show that a number with as many is not cut."""
_DIGITS = re.compile(r"\d+")
_CLOSED = later(r"\d\.\d+(?:[eE][-+]?\d+)?[.,]$")
"""A number with decimals and the end of a clause behind it: ``val loss is 0.0297.``"""
_OF_NUMBERS = "0123456789.,eE+-"


def last_number(text: str, before: Sequence[str]) -> LastLine:
    """Whether a text that may be cut at its end holds its last number whole, by the texts that stood in its place.

    With a fixed number of decimals a shorter one is cut; where their number varies, nobody knows, but for a number with
    so many that a cut changes nothing, and for one with as many as nearly all others.
    """
    if without_last_number(text) == text or _is_exact(text, before):
        return "whole"
    widths = {len(_final(other)) for other in before if _final(other)}
    if len(before) < _ENOUGH or len(widths) != 1:
        fine = sum(len(_final(other)) <= len(_final(text)) for other in before) >= _NEARLY_ALL * len(before)
        return "whole" if fine and len(before) >= _MANY and "." in text[-20:] else "unknown"
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


def _is_exact(text: str, before: Sequence[str]) -> bool:
    """Whether a text ends with nearly all digits of a number, as those before it do, none of them with an exponent."""
    decimals = [len(_final(other)) for other in (text, *before) if other[: -len(_final(other)) or None].endswith(".")]
    return (
        len(decimals) == len(before) + 1 > _ENOUGH
        and min(decimals) >= _EXACT
        and not any(map(_EXPONENT.search, before))
    )


def without_last_number(line: str) -> str:
    """The line without the number, or the beginning of one, at its end. A second point is no part of a number."""
    if _CLOSED.search(line[-40:]):
        return line
    before = line.rstrip(_OF_NUMBERS)
    return before if any(c in "0123456789+-" for c in line[len(before) :]) else line


def _final(text: str) -> str:
    """The last run of digits of a text that ends with one."""
    return text[len(text.rstrip("0123456789")) :]
