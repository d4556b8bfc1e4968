"""What a command wrote to stdout and stderr, which are two files of the session."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from postmortem.attach import launch

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT, ERRORS = launch.OUTPUT, "errors"
"""Their names."""
_TAIL, _FIRST_LINES = 1 << 16, 200


def first_lines(session: Path) -> list[str]:
    """The first lines that the command wrote to stdout and stderr."""
    found: list[str] = []
    for name in (OUTPUT, ERRORS):
        with suppress(OSError), (session / name).open("rb") as file:
            found += file.read(_TAIL).decode(errors="replace").splitlines()[:_FIRST_LINES]
    return found


def last_words(session: Path) -> str:
    """The last line that the command wrote to stderr, else to stdout; lines without a word do not count."""
    for name in (ERRORS, OUTPUT):
        with suppress(OSError), (session / name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
            if said := next((line for line in reversed(lines) if any(map(str.isalnum, line))), ""):
                return said[:300]
    return ""
