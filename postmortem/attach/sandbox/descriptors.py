"""Open descriptors: a forked copy of a program shares its log file, its sockets and its terminal.

No lock takes back a right that an open descriptor holds, so a copy that goes on with the program would append to the
log, send numbers to a tracker's service and print; and reading a file would move the place at which the program reads
on. Its descriptors are therefore replaced one by one.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from postmortem.attach.sandbox import mappings

if TYPE_CHECKING:
    from collections.abc import Iterable


def silence(keep: Iterable[int] = ()) -> int:
    """Everything that is open for writing leads nowhere from here on, except ``keep``; how many were replaced.

    Memory that is shared with the program becomes the copy's own too (`mappings`): a file can be written by it.

    Files that can be read stay readable at the same place, which is the copy's own from here on. Event descriptors and
    the devices of a GPU stay. For a forked child: the descriptors of the parent are not affected.
    """
    mappings.detach()
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    spared = {nowhere, *keep}
    replaced = 0
    try:
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd not in spared:
                replaced += _replace(fd, nowhere)
    finally:
        os.close(nowhere)
    return replaced


def _replace(fd: int, nowhere: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
        flags = _flags(fd)
        inherit = os.get_inheritable(fd)
    except OSError:  # the descriptor of the listing itself
        return False
    access = flags & os.O_ACCMODE
    if flags & os.O_PATH:
        return False
    output = access == os.O_WRONLY or (access == os.O_RDWR and (fd in (1, 2) or flags & os.O_APPEND))
    if stat.S_ISREG(mode) and not output and _reopen(fd, inherit):
        return access != os.O_RDONLY
    terminal = stat.S_ISCHR(mode) and os.isatty(fd)
    if access == os.O_RDONLY or not (terminal or stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    os.dup2(nowhere, fd, inheritable=inherit)
    return True


def _flags(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as info:
        for line in info:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return 0


def _reopen(fd: int, inherit: bool) -> bool:
    """The same file, only for reading; False where it cannot be opened again (an unlinked file of another user)."""
    try:
        place = os.lseek(fd, 0, os.SEEK_CUR)
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.lseek(again, place, os.SEEK_SET)
    os.dup2(again, fd, inheritable=inherit)
    os.close(again)
    return True
