"""Text for people: logs are other people's bytes, so nothing of them reaches a terminal unchecked."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every control character but line ends and tabs replaced, so that no log can steer the terminal.

    >>> printable("loss \\x1b[31m2.3")
    'loss �[31m2.3'
    """
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
