"""What a scan needs to know of a checkpoint, kept until one of its files changes.

A second scan then neither reads the weights again nor imports torch, which takes longer than all else that a scan of a
few runs does. Commands that are about a checkpoint itself (`checkpoints`, `replay`) always read it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.checkpoints.formats import FORMATS
from postmortem.checkpoints.last_good import Looked
from postmortem.core import installed
from postmortem.core.keeper import KEEPER
from postmortem.core.registry import collected_faults, entry_points, report_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIGEST = 16  # bytes
_SETTLED = 3.0
"""Seconds since the last change of a file: within the resolution of its times it may change again unseen."""


def looked(path: Path) -> Looked:
    """The result of opening the checkpoint at `path`; damage is a part of it."""
    step, finite, nonfinite, problem, unverified = _kept("looked", path, _look)
    return Looked(step, finite, tuple(nonfinite), problem, unverified)


def steps(path: Path) -> tuple[int | None, int | None]:
    """The step in the content of a checkpoint, and if there is none, the steps that its optimizer counted."""
    step, count = _kept("steps", path, _steps)
    return step, count


def _look(path: Path) -> list[Any]:
    from postmortem.checkpoints.health import inspect

    return list(Looked.of(inspect(path)))


def _steps(path: Path) -> list[Any]:
    from postmortem.checkpoints.file_map import map_files, optimizer_count

    found = map_files(path)
    return [found.step, optimizer_count(found) if found.step is None else None]


def _kept(what: str, path: Path, find: Callable[[Path], list[Any]]) -> list[Any]:
    keeper = KEEPER.get()
    before = None if keeper is None or _other_formats() else _state(path)
    if keeper is None or before is None:
        return find(path)
    known = keeper.known(_name(what, path, before)) or b""
    if known and known[:_DIGEST] == _digest(known[_DIGEST:]):  # else it is damaged: it is made again
        answer: list[Any] = json.loads(known[_DIGEST:])
        return answer
    with collected_faults() as faults:
        found = find(path)
    for fault in faults:
        report_fault(fault)
    changed = max(max(file[3:5]) for file in before) / 1e9
    if not faults and time.time() - changed > _SETTLED and _state(path) == before:
        data = json.dumps(found).encode()
        keeper.keep(_name(what, path, before), _digest(data) + data)
    return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _state(path: Path) -> list[tuple[Any, ...]] | None:
    """Inode, size, times of change and device of each file; None if there is none, or one is gone."""
    try:
        return [(str(f), *_status(f)) for f in _files(path)] or None
    except OSError:
        return None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for where, folders, names in os.walk(path):
        folders.sort()
        yield from (Path(where, name) for name in sorted(names))


def _status(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev


def _name(what: str, path: Path, state: list[tuple[Any, ...]]) -> str:
    key = [what, str(path), str(path.absolute()), state, __version__, _code(), installed.version("torch")]
    # another torch may read a file that this one cannot
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=20).hexdigest() + ".checkpoint"


@functools.cache
def _code() -> str:
    """A digest of the times and sizes of this sub-package's files: other code may find something else."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _other_formats() -> bool:
    """Whether another package or this program adds formats: what they read may change with them."""
    registered = FORMATS.loaded and any(not f.__module__.startswith("postmortem.") for f in FORMATS)
    return registered or bool(entry_points("postmortem.checkpoint_formats"))
