"""Files that an overlay in a user namespace cannot copy up: those of a user or group that is not mapped.

Only the user's own number and main group exist in the namespace. A file of a project's group, or a folder of root on
the way to the user's own, gives "Value too large for defined data type" when it has to be copied up. So the copies are
put into the layer before: folders, and files up to a size, of the run and of the working folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRIES, _FILE, _ALL = 20_000, 64 << 20, 512 << 20


def prepare(upper: Path, top: Path, inside: Path, deep: bool) -> None:
    """Into the layer over ``top``: what is foreign on the way to ``inside`` and, where ``deep``, in it."""
    way = [inside, *inside.parents]
    for folder in reversed(way[: way.index(top)]):
        _folder(upper, top, folder)
    left = _ALL
    if deep and inside.is_file() and not _ours(inside.stat()):
        _file(upper, top, inside)
    for path, status in _foreign(inside) if deep else ():
        if stat.S_ISDIR(status.st_mode):
            _folder(upper, top, path)
        elif stat.S_ISREG(status.st_mode) and status.st_size <= min(_FILE, left) and os.access(path, os.W_OK):
            left -= status.st_size
            _file(upper, top, path)


def _ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and status.st_gid == os.getegid()


def _foreign(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    seen = 0
    for root, names, files in os.walk(folder):
        for name in (*names, *files):
            seen += 1
            path = Path(root, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            if not _ours(status):
                yield path, status
        if seen > _ENTRIES:
            return


def _folder(upper: Path, top: Path, path: Path) -> None:
    copy = upper / path.relative_to(top)
    if path.is_dir() and not copy.exists():
        with contextlib.suppress(OSError):  # then it stays as it is: read-only
            for parent in reversed(copy.parents):
                if upper in parent.parents and not parent.exists():
                    _folder(upper, top, top / parent.relative_to(upper))
            copy.mkdir()
            shutil.copystat(path, copy)


def _file(upper: Path, top: Path, path: Path) -> None:
    copy = upper / path.relative_to(top)
    _folder(upper, top, path.parent)
    with contextlib.suppress(OSError):
        shutil.copy2(path, copy)
