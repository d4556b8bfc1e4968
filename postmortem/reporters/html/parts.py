"""Pieces of HTML that the page and the notebook fragment are made of."""

from __future__ import annotations

import inspect
import re
from html import escape
from typing import TYPE_CHECKING

from postmortem.detectors import DETECTORS
from postmortem.reporters.shared.outline import headline
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.report import RunReport

_MOST = 200  # entries of one list; the JSON has all


def escaped(text: object, limit: int = 0) -> str:
    """Text of a log or a file name as it may stand in HTML."""
    return escape(clean(text, limit))


def verdict_tag(verdict: str) -> str:
    """The verdict as a coloured word."""
    return f'<span class="tag {verdict}">{verdict.replace("-", " ")}</span>'


def headline_html(run: RunReport) -> str:
    """What happened, the name of the finding first, its code last."""
    words = escaped(headline(run, name_first=True))
    for code in {finding.code for finding in run.findings}:
        words = words.replace(f"({escaped(code)})", f"({code_html(code)})")
    return f"<span>{words}</span>"


def code_html(code: str) -> str:
    """The code of a finding; `explained_codes` or the script of the page adds what it means."""
    return f"<abbr>{escaped(code)}</abbr>"


def meanings(codes: Iterable[str]) -> dict[str, str]:
    """What codes of findings stand for, as the first sentence of their page; unknown ones are left out."""
    wanted = set(codes)
    pages = {d.code: (inspect.getdoc(d) or "").partition("\n\n")[0].replace("\n", " ") for d in DETECTORS}
    return {c: f"{words} More: postmortem explain {c}" for c, words in sorted(pages.items()) if c in wanted and words}


def explained_codes(body: str) -> str:
    """`body` with the meaning of each code as its title, for a page without a script."""
    known = meanings(re.findall(r"<abbr>(\w+)</abbr>", body))
    return re.sub(
        r"<abbr>(\w+)</abbr>",
        lambda m: f'<abbr title="{escaped(known[m[1]])}">{m[1]}</abbr>' if m[1] in known else m[0],
        body,
    )


def breakable(command: str) -> str:
    """A command that a narrow window breaks at spaces only, not inside an option or a path."""
    return " ".join(
        f"<span>{escape(word)}</span>" if "-" in word or "/" in word else escape(word) for word in command.split(" ")
    )


def items(title: str, entries: Sequence[str], *, ordered: bool = False) -> str:
    """A list of HTML entries under a title; empty without entries."""
    heading = f"<h3>{title}</h3>" if title else ""
    return f"{heading}{listing(entries, 'ol' if ordered and len(entries) > 1 else 'ul')}" if entries else ""


def listing(entries: Iterable[str], kind: str = "ul") -> str:
    """A list of HTML entries, the first of very many."""
    every = list(entries)
    more = [f'<span class="dim">… {len(every) - _MOST:,} more</span>'] if len(every) > _MOST else []
    rows = "".join(f"<li>{i}</li>\n" for i in [*every[:_MOST], *more])
    return f"<{kind}>{rows}</{kind}>" if every else ""


def collapsed(title: str, body: str) -> str:
    """HTML that a click on the title opens; empty without a body."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""
