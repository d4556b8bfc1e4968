"""Which files the program has changed since a copy of it was forked, and what was there before.

A copy that repeats the steps since its fork would otherwise find the checkpoints and logs of steps that it has yet to
take, and a program that is told so may refuse to go on ("checkpoint_3 already exists").
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Before = bytes | int | None
"""What a path was: a file with these contents, a file of which this many bytes were there already, or nothing."""
_KEPT = 1 << 20
"""Bytes; of a larger file that is written over, the contents before are not kept."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Journal:
    """`before` has what each path was at the fork, for those that the program has changed since, as Python tells it.

    Python tells of it by audit events (https://docs.python.org/3/library/audit_events.html), before the change is made;
    files that are written from C++ alone are not among them.
    """

    def __init__(self) -> None:
        self.before: dict[str, Before] = {}
        self._writes: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "os.mkdir": self._changed,
            "os.link": self._linked,
            "os.symlink": self._linked,
            "os.rename": self._renamed,
            "os.remove": self._changed,
            "os.truncate": self._changed,
        }
        self._hooked = False
        self._looking = threading.local()

    def begin(self) -> None:
        """A copy has been forked."""
        self.before = {}
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        note = self._writes.get(event)
        if note is None or getattr(self._looking, "now", False):
            return
        self._looking.now = True  # to look at a file is to open it
        try:
            note(*arguments)
        except (OSError, TypeError, ValueError):  # no such folder, a path that is none: the program is told by Python
            return
        finally:
            self._looking.now = False

    def _opened(self, path: Any, mode: Any = None, flags: int = 0, *_: Any) -> None:
        if flags & WRITES:
            self._note(path, grows=not flags & os.O_TRUNC)

    def _changed(self, path: Any, *_: Any) -> None:
        self._note(path)

    def _linked(self, _: Any, new: Any, *__: Any) -> None:
        self._note(new)

    def _renamed(self, old: Any, new: Any, *_: Any) -> None:
        self._note(old)
        self._note(new)

    def _note(self, path: Any, *, grows: bool = False) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.abspath(os.fsdecode(path))
        if name in self.before:
            return
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            self.before[name] = None
            return
        if not stat.S_ISREG(found.st_mode):
            return
        if grows:
            self.before[name] = found.st_size
        elif found.st_size <= _KEPT:
            with open(name, "rb") as file:
                self.before[name] = file.read()


class Past:
    """The files of a `Journal` as they were, for a process that sees them so."""

    def __init__(self, before: dict[str, Before]) -> None:
        self._before = dict(before)

    def hides(self, path: str) -> bool:
        """Whether the path was not there, or lies in a folder that was not."""
        if not self._before:
            return False
        while path not in self._before or self._before[path] is not None:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return True

    def contents(self, path: str) -> bytes | None:
        """What a file held that has been changed since; None where it was not there, or is as it was."""
        held = self._before.get(path)
        if isinstance(held, int):
            with suppress(OSError), io.FileIO(path) as file:  # `open` of this process asks here
                return file.read(held)
            return None
        return held

    def made(self, path: str) -> None:
        """The path is there from now on."""
        self._before.pop(path, None)


def missing(path: str) -> FileNotFoundError:
    """The error of a path that is hidden."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
