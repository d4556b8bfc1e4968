"""A page of text of a fixed width, and the entries that reports on one run and on many share.

Everything that came out of a log is cleaned of control characters, and nothing is read as rich markup.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rich.cells import cell_len

from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.words import MARKS, sparkline
from postmortem.reporters.styled import Styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.report import Around, RunReport
    from postmortem.reporters import RenderOptions
    from postmortem.reporters.styled import Words

VERDICT_STYLE = {"failed": "bold red", "suspect": "bold yellow", "not-judged": "bold magenta", "healthy": "bold green"}
LABEL = 12
"""Columns of the labels on the left."""
BRIEF = 4
"""Lines of one kind without --verbose."""
NARROWEST_CURVE = 4
"""Columns below which a curve shows nothing."""
_NARROWEST = 50  # columns; below this a table of values does not fit


class Page:
    """Lines of a fixed width: a label on the left, wrapped words to its right."""

    def __init__(self, options: RenderOptions) -> None:
        self.verbose = options.verbose
        self.width = max(options.width, _NARROWEST)
        self._color = options.color
        self._lines: list[str] = []

    def text(self) -> str:
        """All lines so far."""
        return "".join(self._lines)

    def blank(self) -> None:
        """Adds an empty line."""
        self._lines.append("\n")

    def add(
        self, label: str, *words: Words, mark: Words = "", style: str = "dim", wrap: bool = True, lines: int = 0
    ) -> None:
        """Prints `words` to the right of `label`, wrapped after `mark` (a bullet or an indent).

        `lines` limits the number of lines; 0 means no limit.
        """
        head = Styled((label, style), " " * max(LABEL - cell_len(label), 1), mark)
        margin = cell_len(head.plain)
        content = Styled(*words)
        wrapped = content.wrapped(self.width - margin) if wrap else [content]
        if lines and len(wrapped) > lines:
            del wrapped[lines:]
            wrapped[-1] = wrapped[-1].shortened(self.width - margin - 1) + Styled("…")
        for i, line in enumerate(wrapped):
            self._lines.append(((head if i == 0 else Styled(" " * margin)) + line).rendered(self._color))


def bullets(page: Page, label: str, items: Sequence[str], *, style: str = "dim", most: int = BRIEF) -> None:
    """One entry per item under one label; without --verbose the first few, each in at most three lines."""
    shown = items if page.verbose else items[:most]
    for i, item in enumerate(shown):
        page.add(label if i == 0 else "", item, mark="- ", style=style, lines=0 if page.verbose else 3)
    more_of(page, len(items) - len(shown))


def more_of(page: Page, n: int, mark: str = "  ") -> None:
    """Says how many entries were left out, if any."""
    if n > 0:
        page.add("", (f"… {n:,} more (--verbose shows all)", "dim"), mark=mark)


def spark(around: Around, width: int) -> list[Words]:
    """The curve of a series in at most `width` columns, non-finite values in red; empty without a curve or room."""
    if width < NARROWEST_CURVE or len(around.curve) < 3:
        return []
    marks = sparkline(around.curve, width, linear=around.role == "lr")
    pieces = itertools.groupby(marks, key=lambda mark: mark in MARKS)
    return [("".join(piece), "red" if bad else "cyan") for bad, piece in pieces]


def shortened(text: str, width: int) -> str:
    """The end of a long name: tags of one family differ at the end."""
    while cell_len(text) > max(width, 1):
        text = "…" + text[2:]
    return text


def next_actions(page: Page, actions: Sequence[str], *, lines: int = 0) -> None:
    """What to do, each in at most `lines` lines. A command is on its own line and is not wrapped: it can be copied."""
    label = "next"
    for action in actions:
        words, commands = with_commands(action)
        if words:
            page.add(label, words, mark="- ", style="bold", lines=lines)
            label = ""
        for command in commands:
            page.add(label, (command, "bold"), mark=("  $ " if words else "$ ", "dim"), style="bold", wrap=False)
            label = ""


def verdict_words(run: RunReport) -> str:
    """ "NOT JUDGED"."""
    return run.verdict.upper().replace("-", " ")
