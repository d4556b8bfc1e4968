"""Memory that a forked copy shares with the program: batches from workers, and mapped files.

A fork copies private memory only. A copy that divides a batch of a worker by 255 in place would do so in the program as
well, and every attempt once more; a mapped file would be written without any call that could be denied.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from postmortem.attach.sandbox import _calls

_READ, _WRITE = 1, 2
_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 2, 0x10, 0x20, 0x4000
_MAY_MOVE, _MOVE_TO = 1, 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_SHARED_MEMORY = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")  # never to be opened again by these names


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/self/maps."""

    start: int
    size: int
    offset: int
    name: str


def shared(table: str = "/proc/self/maps") -> list[Mapping]:
    """The mappings of this process that others see when it writes to them; without those of devices."""
    found = []
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            span, rights, offset, _, _, *name = line.rstrip("\n").split(None, 5)
            start, end = (int(value, 16) for value in span.split("-"))
            mapping = Mapping(start, end - start, int(offset, 16), name[0] if name else "")
            device = mapping.name.startswith("/dev/") and not mapping.name.startswith(_SHARED_MEMORY)
            if rights.startswith("rw-s") and not device and mapping.name.startswith("/"):
                found.append(mapping)
    return found


def detach() -> int:
    """What is shared becomes this process's own, at the same place and with the same content; bytes that were copied.

    A file is mapped again, privately; of memory without a file that could be opened again a copy is made.
    """
    if not _calls.LINUX:
        return 0
    copied = 0
    for mapping in shared():
        if not _map_again(mapping):
            _copy(mapping)
            copied += mapping.size
    return copied


def _map_again(mapping: Mapping) -> bool:
    if mapping.name.startswith(_SHARED_MEMORY) or mapping.name.endswith(" (deleted)"):
        return False
    try:
        fd = os.open(mapping.name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flags = _PRIVATE | _FIXED | _NO_RESERVE
        _calls.mmap(mapping.start, mapping.size, _READ | _WRITE, flags, fd, mapping.offset)
    finally:
        os.close(fd)
    return True


def _copy(mapping: Mapping) -> None:
    copy = _calls.mmap(0, mapping.size, _READ | _WRITE, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0)
    ctypes.memmove(copy, mapping.start, mapping.size)
    _calls.mremap(copy, mapping.size, mapping.size, _MAY_MOVE | _MOVE_TO, mapping.start)
