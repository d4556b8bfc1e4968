"""What a command needs and does not find: its script and a checkpoint, before it is started; a module, after it
failed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.errors import ReplayError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PYTHON = re.compile(r"python[\d.]*")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_NOT_STARTED = re.compile(
    r"can't open file|SyntaxError|IndentationError|unrecognized arguments|ImportError|command not found"
)
_RESUMES = re.compile(r"^-.*(?:resum|restore|continue|load|from)", re.I)


def check_given_paths(command: Sequence[str]) -> None:
    """Raises ReplayError for a file or folder that an option which resumes names, if its parent exists and it does
    not, and for a script that is not there. A name without a folder may be below one that the program knows."""
    script = _script(command)
    if script is not None and not script.exists():
        beside = [str(p) for p in sorted(script.parent.glob("*.py"))[:1000]]
        raise ReplayError(
            f"{script}: no such file or folder, for {command[0]} to run{did_you_mean(str(script), beside)}"
        )
    for option, value in _options(command):
        path = Path(value)
        known = len(path.parts) > 1 and "://" not in value and path.parent.is_dir()
        if known and _RESUMES.search(option) and not path.exists():
            beside = [str(path.parent / p.name) for p in sorted(path.parent.iterdir())[:1000]]
            raise ReplayError(f"{value}: no such file or folder, for {option}{did_you_mean(value, beside)}")


def bad_start(said: str, command: Sequence[str]) -> str | None:
    """What the last words of a command that failed leave open; None where they do not show that it failed at its start.

    "" where they say all of it.
    """
    if missing := _NO_MODULE.search(said):
        python = shutil.which(command[0]) if command and _PYTHON.fullmatch(Path(command[0]).name) else None
        if python is None:
            return f"the Python that ran it has no {missing[1]}"
        other = f"; postmortem itself runs under {sys.executable}" if Path(python) != Path(sys.executable) else ""
        return f"{command[0]} is {python}, which has no {missing[1]}{other}"
    return "" if _NOT_STARTED.search(said) else None


def _script(command: Sequence[str]) -> Path | None:
    """The file that a Python is told to run, if the command is that plainly."""
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    for word in command[1:]:
        if word in ("-u", "-B", "-O", "-OO", "-s", "-v", "-q"):
            continue
        return Path(word) if word.endswith(".py") and not word.startswith("-") else None
    return None


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command with their values, in both forms."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, joined, value = word.partition("=")
        if option.startswith("-"):
            yield option, value if joined else following
