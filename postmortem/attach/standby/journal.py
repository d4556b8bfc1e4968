"""Which files the program has changed since a copy of it was forked, and what was there before.

A copy that repeats the steps since its fork would otherwise find the checkpoints and logs of steps that it has yet to
take, and a program that is told so may refuse to go on ("checkpoint_3 already exists").
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

Before = bytes | int | None
"""What a path was: a file with these contents, a file of which this many bytes were there already, or nothing."""
_KEPT = 1 << 20
"""Bytes; of a larger file that is written over, the contents before are not kept."""
_MOST = 64 << 20
"""Bytes that are kept of all files between two copies, and the largest file that a copy sees shorter than it is."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Journal:
    """`before` has what each path was at the fork, for those that the program has changed since, as far as Python does.

    Files that are written from C++ alone are not among them. Python's own functions are replaced by ones that note the
    path first: an audit hook would be called some ten times in each step, for every `id`.
    """

    def __init__(self) -> None:
        self.before: dict[str, Before] = {}
        self._left = _MOST
        self._installed = False
        self._noting = False

    def begin(self) -> None:
        """A copy has been forked."""
        self.before = {}
        self._left = _MOST
        self._noting = True
        if not self._installed:
            self._installed = True
            self._first(io, "open", self._opened)
            builtins.open = io.open
            self._first(os, "open", self._opened_by_flags)
            for name in ("mkdir", "remove", "unlink", "truncate"):
                self._first(os, name, self._note)
            for name in ("link", "symlink", "rename", "replace"):
                self._first(os, name, self._moved)

    def end(self) -> None:
        """Nothing is noted any more: this process is the copy."""
        self._noting = False

    def _first(self, owner: ModuleType, name: str, note: Callable[..., None]) -> None:
        change = getattr(owner, name)

        @functools.wraps(change)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._noting:
                with suppress(OSError, TypeError, ValueError):  # of a path that is none: `change` says so
                    note(*args, **kwargs)
            return change(*args, **kwargs)

        noted.__module__ = owner.__name__  # where a pickle finds it again
        setattr(owner, name, noted)

    def _opened(self, file: Any, mode: str = "r", *_: Any, **__: Any) -> None:
        if set(mode) & set("wax+"):
            self._note(file, grows="w" not in mode)

    def _opened_by_flags(self, path: Any, flags: int, *_: Any, **__: Any) -> None:
        if flags & WRITES:
            self._note(path, grows=not flags & os.O_TRUNC)

    def _moved(self, src: Any, dst: Any, *_: Any, src_dir_fd: Any = None, dst_dir_fd: Any = None, **__: Any) -> None:
        self._note(src, dir_fd=src_dir_fd)
        self._note(dst, dir_fd=dst_dir_fd)

    def _note(self, path: Any, *_: Any, grows: bool = False, dir_fd: Any = None, **__: Any) -> None:
        if dir_fd is not None or not isinstance(path, (str, bytes, os.PathLike)):
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
        elif found.st_size <= min(_KEPT, self._left):
            self._left -= found.st_size
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
            if held > _MOST:
                return None
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
