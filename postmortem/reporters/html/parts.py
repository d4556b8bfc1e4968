"""Pieces of HTML that the page and the notebook fragment are made of."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST = 200  # entries of one list; the JSON has all


def escaped(text: object, limit: int = 0) -> str:
    """Text of a log or a file name as it may stand in HTML."""
    return escape(clean(text, limit))


def verdict_tag(verdict: str) -> str:
    """The verdict as a coloured word."""
    return f'<span class="tag {verdict}">{verdict.replace("-", " ")}</span>'


def items(title: str, entries: Sequence[str]) -> str:
    """A list of HTML entries under a title; empty without entries."""
    heading = f"<h3>{title}</h3>" if title else ""
    return f"{heading}{listing(entries)}" if entries else ""


def listing(entries: Iterable[str]) -> str:
    """A list of HTML entries, the first of very many."""
    every = list(entries)
    more = [f'<span class="dim">… {len(every) - _MOST:,} more</span>'] if len(every) > _MOST else []
    return "<ul>" + "".join(f"<li>{i}</li>\n" for i in [*every[:_MOST], *more]) + "</ul>" if every else ""


def collapsed(title: str, body: str) -> str:
    """HTML that a click on the title opens; empty without a body."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""
