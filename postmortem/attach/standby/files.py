"""Keeps the files that an attempt writes in memory: it saves and logs as usual, but no file changes.

Landlock denies writing, and a program that is denied its log file ends at once. So where it is denied, Python's own
ways to write are given a file in memory instead, which is read again under its name.
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

if TYPE_CHECKING:
    from collections.abc import Callable

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("chmod", "chown", "lchown", "link", "remove", "rmdir", "symlink", "truncate", "unlink", "utime", "mkfifo")


class _Memory:
    """Files that exist in memory only, by path, and the folders that were to be made."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: set[str] = set()

    def descriptor(self, path: str, *, keep: bool) -> int:
        """A new descriptor of the file, with what it held if `keep`."""
        if path not in self.files:
            self.files[path] = os.memfd_create("postmortem")
            if keep:
                with suppress(OSError), io.FileIO(path) as source:
                    os.write(self.files[path], source.readall() or b"")
        if not keep:
            os.ftruncate(self.files[path], 0)
        return os.open(f"/proc/self/fd/{self.files[path]}", os.O_RDWR)

    def takes(self, path: str, error: OSError) -> bool:
        """Whether a file that could not be opened for writing is to be in memory."""
        folder = os.path.dirname(path)
        return error.errno in _DENIED or (error.errno == errno.ENOENT and folder in self.folders)


def keep_in_memory() -> None:
    """From here on; for a process that is denied writing, and that ends without going back."""
    memory = _Memory()
    _patch_open(memory)
    _patch_os(memory)
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
        if not set(mode) & set("wax+"):
            held = memory.files.get(path)
            return opening(file if held is None else f"/proc/self/fd/{held}", mode, *args, **kwargs)
        try:
            return opening(file, mode, *args, **kwargs)
        except OSError as error:
            if not memory.takes(path, error):
                raise
        appends = "a" in mode
        descriptor = memory.descriptor(path, keep=appends or "r" in mode)
        if appends:
            os.lseek(descriptor, 0, os.SEEK_END)
        plain = mode.replace("a", "w").replace("x", "w")
        if appends or "r" in mode:  # "w" would empty it
            plain = plain.replace("w", "r").replace("+", "") + "+"
        return opening(descriptor, plain, *args, **{**kwargs, "closefd": True, "opener": None})

    io.open = builtins.open = open_

    os_opening = os.open

    @functools.wraps(os_opening)
    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        name = _path(path)
        if name is None or not flags & _WRITES or kwargs.get("dir_fd") is not None:
            held = memory.files.get(name or "")
            return os_opening(path if held is None else f"/proc/self/fd/{held}", flags, *args, **kwargs)
        try:
            return os_opening(path, flags, *args, **kwargs)
        except OSError as error:
            if not memory.takes(name, error):
                raise
        return memory.descriptor(name, keep=not flags & os.O_TRUNC)

    os.open = os_open


def _patch_os(memory: _Memory) -> None:
    def denied(change: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(change)
        def changed(*args: Any, **kwargs: Any) -> Any:
            try:
                return change(*args, **kwargs)
            except OSError as error:
                inside = any(_path(a) in memory.files or _path(a) in memory.folders for a in args[:2])
                if error.errno not in _DENIED and not (error.errno == errno.ENOENT and inside):
                    raise
                then(*args)

        return changed

    def made(path: Any, *_: Any) -> None:
        memory.folders.add(_path(path) or "")

    def moved(old: Any, new: Any, *_: Any) -> None:
        held = memory.files.pop(_path(old) or "", None)
        if held is not None:
            memory.files[_path(new) or ""] = held

    def gone(path: Any, *_: Any) -> None:
        memory.files.pop(_path(path) or "", None)

    for name in _CHANGES:
        setattr(os, name, denied(getattr(os, name), gone if name in ("remove", "unlink") else lambda *_: None))
    os.mkdir = denied(os.mkdir, made)
    for name in ("rename", "replace"):
        setattr(os, name, denied(getattr(os, name), moved))


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
