"""Text and numbers formatted for people."""

from __future__ import annotations


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
