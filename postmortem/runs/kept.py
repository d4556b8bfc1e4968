"""What was read of the files of one run, so that a refresh reads only what is new."""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postmortem.core.skipped import Skips

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postmortem.core.reading import Reading
    from postmortem.readers import Following, Reader

_PROBE = 4096
"""Bytes at the beginning of a file and before its end that show whether it only grew."""
_CURRENT: ContextVar[Kept | None] = ContextVar("kept", default=None)


@dataclass(slots=True)
class _File:
    state: tuple[int, ...]
    reading: Reading
    following: Following | None = None
    probe: tuple[bytes, bytes] = (b"", b"")


class Kept:
    """The readings of the files that were read inside `used`, by path; those that are gone are dropped."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._touched: dict[str, _File] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        """A copy in another process reads the files itself."""
        return Kept, ()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Files that are read inside are read from here, as far as they have not changed."""
        with self._lock:
            token = _CURRENT.set(self)
            self._touched = {}
            try:
                yield
            finally:
                _CURRENT.reset(token)
                self._files, self._touched = self._touched, {}

    def read(self, reader: type[Reader], path: Path) -> Reading:
        """What the reader reads from a file: all of it if it is new or was replaced, else what was added."""
        if getattr(reader, "other_files", False):
            return reader.read(path)  # its own file does not show what changed
        key = f"{reader.kind} {path}"
        known = self._files.get(key)
        before = state_of(path)
        if known is None or known.state != before:
            known = _read(reader, path, before, known)
        self._touched[key] = known
        return _copy(known.reading)


def current() -> Kept | None:
    """What is used at the moment, see `Kept.used`."""
    return _CURRENT.get()


def state_of(path: Path) -> tuple[int, ...]:
    """Device, inode, size, times of change of a file: what differs once it was written or replaced. Raises OSError."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(reader: type[Reader], path: Path, state: tuple[int, ...], known: _File | None) -> _File:
    follow = getattr(reader, "follow", None)
    if follow is None:
        return _File(state, reader.read(path))
    if known is not None and known.following is not None and _only_grew(path, state, known):
        following = known.following
    else:
        following = follow(path)
    reading = following.read()
    return _File(state, reading, following, _probe(path, following.size))


def _only_grew(path: Path, state: tuple[int, ...], known: _File) -> bool:
    """Whether bytes were appended, and nothing else. One that was changed far inside looks the same."""
    size = known.following.size if known.following is not None else 0
    same_file = state[:2] == known.state[:2] and state[2] >= size
    return same_file and _probe(path, size) == known.probe


def _probe(path: Path, size: int) -> tuple[bytes, bytes]:
    """Bytes at the beginning of a file, and those before `size`."""
    with path.open("rb") as file:
        first = file.read(min(_PROBE, size))
        file.seek(max(0, size - _PROBE))
        return first, file.read(min(_PROBE, size))


def _copy(reading: Reading) -> Reading:
    """A reading that may be changed while a run is made of it; its numbers are shared, they never are."""
    return replace(
        reading,
        points=reading.points.copy(),
        events=[*reading.events],
        problems=[*reading.problems],
        config=copy.deepcopy(reading.config),
        summary=copy.deepcopy(reading.summary),
        skipped=Skips(reading.skipped, getattr(reading.skipped, "words", None)),
        notes=[*reading.notes],
        blanks=dict(reading.blanks),
        unreadable=dict(reading.unreadable),
        facts=dict(reading.facts),
    )
