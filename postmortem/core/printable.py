"""Text and numbers formatted for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(text: str) -> str:
    """`text` with every control character but line ends and tabs replaced, so that no log can control the terminal.

    >>> printable("loss \\x1b[31m2.3")
    'loss �[31m2.3'
    """
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def number(value: float | None, digits: int = 4) -> str:
    """`value` rounded to significant digits; a dash for None.

    >>> number(0.00031234567), number(1234567.0, 3), number(None)
    ('0.0003123', '1.23e+06', '–')
    """
    return "–" if value is None else f"{value:.{digits}g}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first `most` names and how many more there are.

    >>> listed(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def filled(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """`text` wrapped at `width` columns, of which 40 are always used; `first` begins the first line, `rest` (default:
    as many spaces) the others. Words, paths among them, are never broken.

    >>> filled("one two three four five six seven eight nine ten", 30, "- ")
    ['- one two three four five six seven', '  eight nine ten']
    """
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
