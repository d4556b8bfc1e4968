"""How far a scan is, in one line on stderr, where somebody is looking."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postmortem.core.printable import printable
from postmortem.core.progress import listening
from postmortem.reporters.shared.words import count

if TYPE_CHECKING:
    from types import TracebackType

_PATIENCE = 1.0
"""Seconds that pass without a word."""
_PAUSE = 0.1
"""Seconds between two states of the line."""


def shown_progress() -> ShownProgress | None:
    """None where stderr is no terminal that can redraw a line."""
    return ShownProgress() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None


class ShownProgress:
    """A context in which the search for files, the reading of a large one and the runs that are done are shown."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE
        self._listening = listening(self._advanced)
        self._runs = ""
        self._width = 0

    def __enter__(self) -> ShownProgress:
        self._listening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.__exit__(kind, error, trace)
        self._redraw("")

    def runs(self, done: int, total: int, name: str) -> None:
        """So many runs are done; `name` is the last one that was begun or done."""
        self._runs = f"[{done}/{total}] "
        self._show(f"{self._runs}{name}")

    def _advanced(self, what: str, done: int, total: int) -> None:
        if total:
            self._show(f"{self._runs}{Path(what).name}: {100 * done // total} %")
        else:
            self._show(f"looking for logs: {count(done, 'file')}, {what}")

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._redraw(printable(text)[: shutil.get_terminal_size().columns - 1])

    def _redraw(self, line: str) -> None:
        if line or self._width:
            self._width = len(line)
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
