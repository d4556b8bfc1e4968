"""The mounts of the machine, and which folders an overlay can cover: decided before anything is mounted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Kernel interfaces, not places where a training keeps files; autofs would mount what is looked at.
_NO_FILES = frozenset(
    (
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "mqueue",
        "debugfs",
        "tracefs",
        "securityfs",
        "bpf",
        "pstore",
        "autofs",
        "rpc_pipefs",
        "fusectl",
        "configfs",
        "hugetlbfs",
        "nsfs",
        "efivarfs",
        "binfmt_misc",
        "selinuxfs",
    )
)
# The system's own folders: a training that writes there is denied it, nothing is redirected.
_SYSTEM = frozenset(
    Path("/", name)
    for name in (
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "nix",
        "proc",
        "run",
        "sbin",
        "snap",
        "sys",
        "usr",
    )
)
_MOST = 200  # folders taken one by one around a mount point; a wider folder is left read-only


@dataclass(frozen=True)
class Mounted:
    """One line of mountinfo."""

    path: Path
    kind: str
    flags: frozenset[str]

    @property
    def holds_files(self) -> bool:
        """Whether files of users may lie there."""
        return self.kind not in _NO_FILES


def read(table: str = "/proc/self/mountinfo") -> list[Mounted]:
    """The mounts of this process, in the order in which they were made."""
    found = []
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            fields = left.split()
            found.append(Mounted(Path(_plain(fields[4])), right.split()[0], frozenset(fields[5].split(","))))
    return found


def _plain(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def to_cover(mounts: list[Mounted], must: Sequence[Path] = ()) -> list[Path]:
    """The folders that overlays are put over: disjoint, none with a mount point below.

    The system's own are left out, except what of ``must`` lies in them (containers work in /usr/src).
    """
    points = {mount.path for mount in mounts}
    found: list[Path] = []
    for mount in mounts:
        if mount.holds_files and "ro" not in mount.flags and not _of_system(mount.path):
            found += _within(mount.path, points)
    for path in must:
        if _of_system(path):
            found += _within(path, points)
    return sorted({path for path in found if not any(parent in found for parent in path.parents)})


def below(mounts: list[Mounted], folders: Sequence[Path]) -> dict[Path, Mounted]:
    """The mount points strictly below one of ``folders``, with what is mounted there: an overlay hides them."""
    return {mount.path: mount for mount in mounts if any(folder in mount.path.parents for folder in folders)}


def _of_system(path: Path) -> bool:
    return path in _SYSTEM or any(parent in _SYSTEM for parent in path.parents)


def _within(folder: Path, points: set[Path]) -> Iterator[Path]:
    """``folder`` itself, or, where something is mounted below it, the folders in it that are not mount points."""
    if not os.path.isdir(folder):
        return
    if folder != Path("/") and not any(folder in point.parents for point in points):
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    below = [name for name in names if name not in points and not _of_system(name)]
    for name in below if len(below) <= _MOST else []:
        yield from _within(name, points)
