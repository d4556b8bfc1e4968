"""What was read of files that have not changed since: kept in the user's cache folder, so that a second scan is fast.

An entry holds the `Reading` of one file, under a name made of its path, size, times, inode and of the code that reads
it; or what opening a checkpoint showed (`checkpoints.kept`); or the reports of runs (`known_reports`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem._version import __version__
from postmortem.core.keeper import KEEPER
from postmortem.core.registry import collected_faults, entry_points
from postmortem.readers.text.dialects import DIALECTS
from postmortem.runs.stored_reading import DamagedReading, NotStorable, from_bytes, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.core.reading import Reading
    from postmortem.readers import Reader

VARIABLE = "POSTMORTEM_CACHE_DIR"
_SUFFIX = ".reading"
REPORT_SUFFIX = ".report"
_SUFFIXES = (_SUFFIX, REPORT_SUFFIX, ".checkpoint")
_LARGEST = 1 << 30
"""Bytes of all entries; the oldest make room."""
_LARGEST_ENTRY = 1 << 28
_SETTLED = 3.0
"""Seconds since the last change of a file: within the resolution of its times it may change again unseen."""
_CURRENT: ContextVar[Cache | None] = ContextVar("cache", default=None)


def cache_folder() -> Path:
    """POSTMORTEM_CACHE_DIR, else the folder for caches of this platform (XDG_CACHE_HOME), with "postmortem" in it."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "postmortem"


@contextmanager
def cached(note: Callable[[str], None]) -> Iterator[None]:
    """Files that are read inside use the user's cache; `note` is called with what was wrong with an entry."""
    if _has_plugins():
        yield
        return
    try:
        used = Cache(cache_folder(), note)
    except (OSError, RuntimeError):  # no home
        yield
        return
    token, kept = _CURRENT.set(used), KEEPER.set(used)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        KEEPER.reset(kept)
        used.make_room()


def settled_after() -> float:
    """Seconds since the last change of a file, after which the same times mean the same content."""
    return _SETTLED


def in_use() -> Cache | None:
    """The cache of the `cached` that this is inside of."""
    return _CURRENT.get()


def read_file(reader: type[Reader], path: Path) -> Reading:
    """What `reader` reads from a file, from the cache of `cached` if it has not changed. Raises as the reader does."""
    used = _CURRENT.get()
    if used is None or getattr(reader, "other_files", False) or not reader.__module__.startswith("postmortem.readers."):
        return reader.read(path)
    return used.read(reader, path)


class Cache:
    """Entries in one folder, which several scans may use at the same time."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder, self.note = folder, note
        self.listed: dict[str, tuple[int, ...]] = {}
        """States of folders that several runs ask for."""
        self._wrote = False

    def read(self, reader: type[Reader], path: Path) -> Reading:
        """The reading of a file, from its entry if there is one, which is made else."""
        before = _state(path)
        if before is None:
            return reader.read(path)
        name = _name(reader, path, before) + _SUFFIX
        if (known := self._known(name)) is not None:
            return known
        with collected_faults() as faults:
            reading = reader.read(path)
        settled = time.time() - max(before[2], before[3]) / 1e9 > _SETTLED
        if settled and not faults and not _other_dialects() and _state(path) == before:
            with suppress(NotStorable):
                self.keep(name, to_bytes(reading))
        return reading

    def _known(self, name: str) -> Reading | None:
        data = self.known(name)
        if data is None:
            return None
        try:
            return from_bytes(data)
        except DamagedReading as error:
            self.damaged(name, error)
            return None

    def damaged(self, name: str, error: Exception) -> None:
        """Tells of an entry that cannot be used, and removes it."""
        entry = self.folder / name
        self.note(f"an entry of the cache is damaged and not used: {entry}: {error}")
        with suppress(OSError):
            entry.unlink()

    def known(self, name: str) -> bytes | None:
        """The bytes of an entry; None if there is none."""
        entry = self.folder / name
        try:
            data = entry.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(entry)  # the entries that were not used for the longest time make room
        return data

    def keep(self, name: str, data: bytes) -> None:
        """Writes an entry whole or not at all. A full disk or a folder that cannot be written costs only the entry."""
        if len(data) > _LARGEST_ENTRY:
            return
        new = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self.folder)
            new = Path(temporary)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            new.replace(self.folder / name)
            self._wrote = True
        except OSError:
            if new is not None:
                with suppress(OSError):
                    new.unlink()

    def make_room(self) -> None:
        """Removes the entries that were not used for the longest time, down to the limit; after a scan that wrote."""
        if not self._wrote:
            return
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another scan removed it
                    status = entry.stat()
                    left_over = entry.name.startswith(".new-") and time.time() - status.st_mtime > 3600
                    if entry.name.endswith(_SUFFIXES) or left_over:
                        found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= _LARGEST:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size


def _state(path: Path) -> tuple[int, ...] | None:
    """Inode, size, times of change and device of a file: what differs once it was written or replaced."""
    try:
        status = path.stat()
    except OSError:
        return None  # its reading reports why
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev


def _name(reader: type[Reader], path: Path, state: tuple[int, ...]) -> str:
    """The name of the entry. Reports name a file as it was given, so that is a part of it."""
    code_of_readers = code("core", "readers", "signatures")
    key = [str(path), str(path.absolute()), state, reader.kind, __version__, code_of_readers, sys.byteorder]
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=20).hexdigest()


@cache
def code(*parts: str) -> str:
    """A digest of the times and sizes of our own files in these sub-packages: other code may find something else."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parent.parent
    for part in parts:
        for folder, folders, files in os.walk(root / part):
            folders.sort()
            for file in sorted(files):
                if not file.endswith(".pyc"):
                    status = os.stat(os.path.join(folder, file))
                    digest.update(f"{folder}/{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _has_plugins() -> bool:
    """Whether other packages add readers or dialects: what they read may change with them."""
    groups = ("postmortem.readers", "postmortem.dialects")
    return any(entry_points(group) for group in groups)


def _other_dialects() -> bool:
    """Whether this program registered a dialect of its own."""
    return DIALECTS.loaded and any(not d.__module__.startswith("postmortem.") for d in DIALECTS)
