"""Files that are not of a run, and on which its report depends nevertheless: the script that its log names, a recipe.

Who keeps a report collects them, and makes it anew once one of them changed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

State = tuple[int, ...]
Place = TypeVar("Place", "str", "Path")
_LOOKED_AT: ContextVar[dict[str, State] | None] = ContextVar("looked_at", default=None)


def state_of(path: str | Path) -> State:
    """Inode, size, times of change and device of a file: what differs once it was written or replaced. () for none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a name with a NUL
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev


def looked_at(path: Place) -> Place:
    """`path` itself, which is opened or asked for next: that it may be there is noted where somebody collects."""
    found = _LOOKED_AT.get()
    if found is not None:
        found.setdefault(os.path.abspath(path), state_of(path))
    return path


@contextmanager
def collected() -> Iterator[dict[str, State]]:
    """The files that were looked at inside, and their states at that time."""
    found: dict[str, State] = {}
    token = _LOOKED_AT.set(found)
    try:
        yield found
    finally:
        _LOOKED_AT.reset(token)
