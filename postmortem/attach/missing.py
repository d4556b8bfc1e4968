"""A checkpoint that the command is told to resume from, and that is not there: known before anything is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.errors import ReplayError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RESUMES = re.compile(r"^-.*(?:resum|restore|continue|load|from)", re.I)


def check_given_paths(command: Sequence[str]) -> None:
    """Raises ReplayError for a file or folder that an option which resumes names, if its parent exists and it does
    not. A name without a folder may be below one that the program knows."""
    for option, value in _options(command):
        path = Path(value)
        known = len(path.parts) > 1 and "://" not in value and path.parent.is_dir()
        if known and _RESUMES.search(option) and not path.exists():
            beside = [str(path.parent / p.name) for p in sorted(path.parent.iterdir())[:1000]]
            raise ReplayError(f"{value}: no such file or folder, for {option}{did_you_mean(value, beside)}")


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command with their values, in both forms."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, joined, value = word.partition("=")
        if option.startswith("-"):
            yield option, value if joined else following
