"""Words with styles, wrapped to a width; plain text, or with the colours of a terminal.

The same as `rich.text.Text` makes of them, of which a report needs little: importing rich's console takes as long as
reading a small run.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells

if TYPE_CHECKING:
    Words = str | tuple[str, str]
    """Plain words, or words with a style."""

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_WORD = re.compile(r"\s*\S+\s*")


class Styled:
    """One text of pieces, each with a style: "" or words of `_CODES`."""

    def __init__(self, *words: Words) -> None:
        self.pieces = [(piece, "") if isinstance(piece, str) else piece for piece in words]

    @property
    def plain(self) -> str:
        """The text without its styles."""
        return "".join(text for text, _ in self.pieces)

    def __add__(self, other: Styled) -> Styled:
        return Styled(*self.pieces, *other.pieces)

    def part(self, start: int, stop: int) -> Styled:
        """The characters from `start` to `stop`, exclusive."""
        found, at = Styled(), 0
        for text, style in self.pieces:
            if kept := text[max(start - at, 0) : max(stop - at, 0)]:
                found.pieces.append((kept, style))
            at += len(text)
        return found

    def wrapped(self, width: int) -> list[Styled]:
        """The lines of this text, none of more than `width` columns: a word that is longer is cut."""
        lines, at = [], 0
        for line in self.plain.split("\n"):
            for start, stop in pairwise([0, *_breaks(line, width), len(line)]):
                blank = stop - start - len(line[start:stop].rstrip())
                lines.append(self.part(at + start, at + stop - min(blank, max(stop - start - width, 0))))
            at += len(line) + 1
        return lines

    def shortened(self, width: int) -> Styled:
        """The beginning, in at most `width` columns."""
        plain = self.plain
        return self if cell_len(plain) <= width else self.part(0, len(chop_cells(plain, width)[0]))

    def rendered(self, color: bool) -> str:
        """One line of the terminal, without blanks at its end."""
        line = self.part(0, len(self.plain.rstrip()))
        return "".join(_colored(text, style) if color and style else text for text, style in line.pieces) + "\n"


def _colored(text: str, style: str) -> str:
    return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"


def _breaks(line: str, width: int) -> list[int]:
    """Where a line continues in the next one. Blanks after a word belong to it, and may be beyond the width."""
    found: list[int] = []
    used = 0
    for match in _WORD.finditer(line):
        start, word = match.start(), match[0]
        length = cell_len(word.rstrip())
        if used + length <= width:
            used += cell_len(word)
        elif length <= width:
            found.append(start)
            used = cell_len(word)
        else:
            for piece in chop_cells(word, width):
                found.append(start)
                start += len(piece)
                used = cell_len(piece)
    return [at for at in found if at]
