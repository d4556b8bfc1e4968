"""Keeps the files that an attempt writes in memory: it saves and logs as usual, but no file changes.

Landlock denies writing, and a program that is denied its log file ends at once. So where it is denied, Python's own
ways to write are given a file in memory instead, which is read again under its name. What the program itself has
written since the copy is not there yet (`journal`).
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.standby.journal import WRITES, Past, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postmortem.attach.standby.journal import Before

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_CHANGES = ("chmod", "chown", "lchown", "link", "remove", "rmdir", "symlink", "truncate", "unlink", "utime", "mkfifo")


class _Memory:
    """Files that exist in memory only, by path, and the folders that were to be made; `past`: those on the disk."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.files: dict[str, int] = {}
        self.folders: set[str] = set()

    def held(self, path: str) -> int | None:
        """The descriptor of a file that is in memory, or that is to be read as it was; None for one on the disk."""
        if path not in self.files and (was := self.past.contents(path)) is not None:
            self._make(path, was)
        return self.files.get(path)

    def hides(self, path: str) -> bool:
        """Whether a path on the disk was not there yet."""
        return path not in self.files and path not in self.folders and self.past.hides(path)

    def descriptor(self, path: str, *, keep: bool) -> int:
        """A new descriptor of the file, with what it held if `keep`."""
        if self.held(path) is None:
            was = b""
            if keep and not self.hides(path):
                with suppress(OSError), io.FileIO(path) as source:
                    was = source.readall() or b""
            self._make(path, was)
        if not keep:
            os.ftruncate(self.files[path], 0)
        return os.open(f"/proc/self/fd/{self.files[path]}", os.O_RDWR)

    def _make(self, path: str, contents: bytes) -> None:
        self.files[path] = os.memfd_create("postmortem")
        os.write(self.files[path], contents)

    def opened(self, path: str, opening: Callable[[str | None], Any], *, writes: bool) -> Any:
        """What `opening` gives for the file: of another name, or of its own (None); None where it is to be written in
        memory."""
        held, hidden = self.held(path), self.hides(path)
        if not writes:
            if hidden:
                raise missing(path)
            return opening(None if held is None else f"/proc/self/fd/{held}")
        if held is None and not hidden:
            try:
                return opening(None)
            except OSError as error:
                new = error.errno == errno.ENOENT and os.path.dirname(path) in self.folders
                if error.errno not in _DENIED and not new:
                    raise
        return None


def keep_in_memory(before: Mapping[str, Before]) -> None:
    """From here on; for a process that is denied writing, and that ends without going back.

    before: what paths were that the program has changed since, as the `Journal` has them.
    """
    memory = _Memory(Past(dict(before)))
    _patch_open(memory)
    _patch_os_open(memory)
    _patch_os(memory)
    _patch_looking(memory)
    _patch_savers()


def _path(name: Any) -> str | None:
    return os.path.abspath(os.fsdecode(name)) if isinstance(name, (str, bytes, os.PathLike)) else None


def _patch_open(memory: _Memory) -> None:
    opening = io.open

    @functools.wraps(opening)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = _path(file)
        if path is None or not isinstance(mode, str):
            return opening(file, mode, *args, **kwargs)
        writes = bool(set(mode) & set("wax+"))

        def plainly(other: str | None) -> Any:
            return opening(file if other is None else other, mode, *args, **kwargs)

        if (found := memory.opened(path, plainly, writes=writes)) is not None:
            return found
        appends = "a" in mode
        descriptor = memory.descriptor(path, keep=appends or "r" in mode)
        if appends:
            os.lseek(descriptor, 0, os.SEEK_END)
        plain = mode.replace("a", "w").replace("x", "w")
        if appends or "r" in mode:  # "w" would empty it
            plain = plain.replace("w", "r").replace("+", "") + "+"
        return opening(descriptor, plain, *args, **{**kwargs, "closefd": True, "opener": None})

    io.open = builtins.open = open_


def _patch_os_open(memory: _Memory) -> None:
    os_opening = os.open

    @functools.wraps(os_opening)
    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        name = _path(path)
        if name is None or kwargs.get("dir_fd") is not None:
            return os_opening(path, flags, *args, **kwargs)

        def plainly(other: str | None) -> int:
            return os_opening(path if other is None else other, flags, *args, **kwargs)

        if (found := memory.opened(name, plainly, writes=bool(flags & WRITES))) is not None:
            return int(found)
        return memory.descriptor(name, keep=not flags & os.O_TRUNC)

    os.open = os_open


def _patch_os(memory: _Memory) -> None:
    making = os.mkdir

    def denied(change: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(change)
        def changed(*args: Any, **kwargs: Any) -> Any:
            paths = [path for a in args[:2] if (path := _path(a)) is not None]
            if change is making and paths and memory.hides(paths[0]):
                then(*args)
                return None
            try:
                return change(*args, **kwargs)
            except OSError as error:
                inside = any(path in memory.files or path in memory.folders for path in paths)
                if error.errno not in _DENIED and not (error.errno == errno.ENOENT and inside):
                    raise
                then(*args)
                return None

        return changed

    def made(path: Any, *_: Any) -> None:
        memory.folders.add(_path(path) or "")
        memory.past.made(_path(path) or "")

    def moved(old: Any, new: Any, *_: Any) -> None:
        held = memory.files.pop(_path(old) or "", None)
        if held is not None:
            memory.files[_path(new) or ""] = held

    def gone(path: Any, *_: Any) -> None:
        memory.files.pop(_path(path) or "", None)

    for name in _CHANGES:
        setattr(os, name, denied(getattr(os, name), gone if name in ("remove", "unlink") else lambda *_: None))
    os.mkdir = denied(making, made)
    for name in ("rename", "replace"):
        setattr(os, name, denied(getattr(os, name), moved))


def _patch_looking(memory: _Memory) -> None:
    """What is hidden is not found, and a file in memory is found."""

    def looked(look: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(look)
        def found(path: Any, *args: Any, **kwargs: Any) -> Any:
            name = _path(path)
            if name is None or kwargs.get("dir_fd") is not None:
                return look(path, *args, **kwargs)
            if memory.hides(name):
                raise missing(name)
            held = memory.held(name)
            return look(path, *args, **kwargs) if held is None else os.fstat(held)

        return found

    os.stat, os.lstat = looked(os.stat), looked(os.lstat)
    accessible, listing, scanning = os.access, os.listdir, os.scandir

    @functools.wraps(accessible)
    def access(path: Any, *args: Any, **kwargs: Any) -> bool:
        name = _path(path)
        return (name is None or not memory.hides(name)) and accessible(path, *args, **kwargs)

    def shown(folder: Any, entry: Any) -> bool:
        return not memory.hides(os.path.join(os.path.abspath(os.fsdecode(folder)), os.fsdecode(entry)))

    @functools.wraps(listing)
    def listdir(path: Any = ".") -> list[Any]:
        return listing(path) if isinstance(path, int) else [entry for entry in listing(path) if shown(path, entry)]

    class Shown:
        """As the iterator of `os.scandir`."""

        def __init__(self, path: Any) -> None:
            self._entries = scanning(path)
            self._all = isinstance(path, int)
            self._path = "." if path is None else path

        def __iter__(self) -> Shown:
            return self

        def __next__(self) -> Any:
            return next(entry for entry in self._entries if self._all or shown(self._path, entry.name))

        def __enter__(self) -> Shown:
            return self

        def __exit__(self, *_: Any) -> None:
            self.close()

        def close(self) -> None:
            self._entries.close()

    os.access, os.listdir = access, listdir
    os.scandir = lambda path=".": Shown(path)  # type: ignore[assignment]


def _patch_savers() -> None:
    """Functions that open a path in C++ or Rust are given a file of Python's."""
    saving = torch.save

    @functools.wraps(saving)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if _path(f) is None:
            saving(obj, f, *args, **kwargs)
            return
        with open(f, "wb") as file:
            saving(obj, file, *args, **kwargs)

    torch.save = save
    tensors = sys.modules.get("safetensors.torch")
    if tensors is not None and hasattr(tensors, "serialize"):

        def serialize_file(values: Any, filename: Any, metadata: Any = None) -> None:
            with open(filename, "wb") as file:
                file.write(tensors.serialize(values, metadata=metadata))

        tensors.serialize_file = serialize_file  # type: ignore[attr-defined]
