"""Landlock: a process gives up the right to write outside some folders, for itself and its children.

Writing is denied (``PermissionError``), not redirected. It needs no privileges and no namespace, holds in C++ code as
in Python, and cannot be undone. The kernel's limits: a file that is open for writing already stays writable (see
`descriptors`), and mode, owner and times of a file can still be changed (see `metadata`).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import TYPE_CHECKING

from postmortem.attach.sandbox import _calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# asm-generic/unistd.h: the same numbers on every architecture
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1  # flag of landlock_create_ruleset: tells the ABI
_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_FILE = 1 << 1  # open a file for writing
_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, sockets, FIFOs, devices, links
_REFER = 1 << 13  # ABI 2: link or rename into another folder; without it the kernel denies that everywhere
_TRUNCATE = 1 << 14  # ABI 3


def abi() -> int:
    """The version of Landlock that this kernel speaks, 0: none."""
    return max(_calls.syscall(_CREATE, 0, 0, _VERSION), 0)


def _rights(version: int) -> int:
    return _FILE | _FOLDER | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)


def lock_writes(allow: Sequence[Path] = ()) -> bool:
    """From here on nothing can be written outside of ``allow``, devices excepted; whether that holds.

    For a forked child, right after the fork: only the thread that calls is locked, and a forked child has no other.
    """
    version = abi()
    if not version:
        return False
    rights = _rights(version)
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    ruleset = _calls.syscall(_CREATE, ctypes.cast(attributes, ctypes.c_void_p), 8, 0)
    if ruleset < 0:
        return False
    try:
        for path in (*_devices(), *map(os.fspath, allow)):
            if not _allow(ruleset, path, rights):
                return False
        _calls.no_new_privileges()
        return _calls.syscall(_RESTRICT, ruleset, 0) == 0
    except OSError:
        return False
    finally:
        os.close(ruleset)


def _devices() -> list[str]:
    """What is in /dev, without the shared memory: its segments are files of users."""
    with os.scandir("/dev") as entries:
        return [entry.path for entry in entries if entry.name != "shm" and (entry.is_dir() or _is_device(entry))]


def _is_device(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link that leads nowhere
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _allow(ruleset: int, path: str, rights: int) -> bool:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        here = rights if os.path.isdir(path) else rights & (_FILE | _TRUNCATE)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", here, fd), 12)
        return _calls.syscall(_ADD, ruleset, _BENEATH, ctypes.cast(rule, ctypes.c_void_p), 0) == 0
    finally:
        os.close(fd)
