"""Puts an overlay over every folder that a training may write to: writes go to a separate layer.

For a process in a mount namespace of its own. All writable file systems are covered, not only the run's folder: a
program also writes to ``$HOME``, to ``/tmp`` and to absolute paths of its configuration. What cannot be covered becomes
read-only, so nothing of the user's can change either way. The layer mirrors ``/``: what the program wrote to
``/data/run/log.txt`` is at ``upper/data/run/log.txt``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.attach.sandbox import _calls, mirror, mounts

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEPT_FLAGS = {
    "nosuid": _calls.MS_NOSUID,
    "nodev": _calls.MS_NODEV,
    "noexec": _calls.MS_NOEXEC,
    "noatime": _calls.MS_NOATIME,
    "nodiratime": _calls.MS_NODIRATIME,
    "relatime": _calls.MS_RELATIME,
}
_SHARED = Path("/dev/shm")


class NotPossible(OSError):
    """This kernel, or this file system, does not let us protect the files; the message says which step failed."""


def _name(path: Path) -> str:
    """``path`` as an option of an overlay: some characters have a meaning there."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


class Layers:
    """The layers of one rerun, in a folder on a disk that can hold them."""

    def __init__(self, folder: Path, own_users: bool) -> None:
        self.folder = folder.resolve()
        # By a descriptor: the path leads into the overlay once the folder above is covered.
        self._held = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        base = Path(f"/proc/self/fd/{self._held}")
        self.upper, self._work, self._views, self.room = (base / name for name in ("upper", "work", "views", "shm"))
        self.own_users = own_users
        self._other = False  # whether another file system is mounted at views
        self._options = "userxattr" if own_users else "redirect_dir=on"
        for made in (self.upper, self._work, self._views, self.room):
            made.mkdir()

    def close(self) -> None:
        """The mounts stay."""
        os.close(self._held)

    def cover(self, path: Path, must: Sequence[Path] = (), way: Sequence[Path] = (), lower: Path | None = None) -> None:
        """An overlay over ``path``, at ``path``. All below ``must`` has to be writable, and ``way`` itself.

        ``lower``: another name of what was there, where an overlay above already hides it.
        """
        source = lower or path
        upper = self.upper / path.relative_to("/")
        work = self._work / str(len(os.listdir(self._work)))
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir()
        status = source.stat()
        with contextlib.suppress(OSError):  # another user's folder, in a user namespace: only its mode is taken
            os.chown(upper, status.st_uid, status.st_gid)
        os.chmod(upper, status.st_mode & 0o7777)
        if self.own_users:
            for inside in (*must, *way):
                if _below(inside, path):
                    mirror.prepare(upper, path, inside, deep=inside in must)
        if path == self.folder or path in self.folder.parents:
            source = self._view(_name(source), work.name)
        layers = f"lowerdir={_name(source)},upperdir={_name(upper)},workdir={_name(work)},{self._options}"
        try:
            _calls.mount("overlay", str(path), "overlay", 0, f"{layers},volatile")
        except OSError:  # before Linux 5.10, or a file system without d_type
            _calls.mount("overlay", str(path), "overlay", 0, layers)

    def _view(self, lower: str, name: str) -> Path:
        """The same content on another file system: the kernel refuses a layer that lies in the folder below it.

        An overlay of the folder with nothing above it; the empty folder that this takes has to lie elsewhere as well.
        """
        if not self._other:
            self._other = True
            _calls.mount("tmpfs", str(self._views), "tmpfs", _calls.MS_NOSUID | _calls.MS_NODEV, "mode=0700")
        view, nothing = self._views / name, self._views / f"{name}-nothing"
        view.mkdir()
        nothing.mkdir()
        plain = ",userxattr" if self.own_users else ""
        _calls.mount("overlay", str(view), "overlay", 0, f"lowerdir={lower}:{_name(nothing)}{plain}")
        return view


def enter(
    layers: Path, own_users: bool, must: Sequence[Path], keep: Sequence[Path], way: Sequence[Path] = ()
) -> tuple[list[Path], list[Path]]:
    """Cover what can be covered, make the rest read-only; ``keep`` stays as it is. -> (covered, read-only folders).

    In ``must`` every file has to be writable for the program, in ``way`` new ones. Raises `NotPossible` where one of
    ``must`` could not be covered.
    """
    _calls.mount("", "/", "", _calls.MS_REC | _calls.MS_PRIVATE)
    table = mounts.read()
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in keep]
    made = Layers(layers, own_users)
    covered: list[Path] = []
    failed = _cover_all(made, table, must, way, covered)
    for path in must:
        if path != Path("/") and not any(_below(path, top) for top in covered) and not _read_only(path, table):
            why = next((str(error) for top, error in failed.items() if _below(path, top)), "it cannot be covered")
            raise NotPossible(f"no overlay over {path}: {why}")
    if not any(_below(path, _SHARED) for path in covered):
        _shared_memory(made)
    made.close()
    for path, fd in held:
        _calls.mount(f"/proc/self/fd/{fd}", str(path), "", _calls.MS_BIND)
        os.close(fd)
    return covered, _freeze(table, covered)


def _cover_all(
    made: Layers, table: list[mounts.Mounted], must: Sequence[Path], way: Sequence[Path], covered: list[Path]
) -> dict[Path, OSError]:
    """Lay the overlays, those above first; what failed, and why."""
    failed: dict[Path, OSError] = {}
    tops = [] if made.own_users else [path for path in must if path != Path("/")]
    # An overlay hides what is mounted below it: only root may lay one there, and mounts that again, on top.
    hidden = {path: mount for path, mount in mounts.below(table, tops).items() if os.path.isdir(path)}
    behind = {path: Path(f"/proc/self/fd/{os.open(path, os.O_PATH)}") for path in hidden}
    whole = {top for top in tops if any(top in path.parents for path in hidden)}
    whole = {top for top in whole if not any(other in top.parents for other in whole)}
    apart = [path for path in mounts.to_cover(table, must) if not any(_below(path, top) for top in whole)]
    for path in sorted({*apart, *whole, *behind}):
        source = behind.get(path)
        try:
            if source and (not hidden[path].holds_files or "ro" in hidden[path].flags):
                _calls.mount(str(source), str(path), "", _calls.MS_BIND | _calls.MS_REC)
            else:
                made.cover(path, must, way, source)
                covered.append(path)
        except OSError as error:
            failed[path] = error
            if source:
                _calls.mount(str(source), str(path), "", _calls.MS_BIND)
                _calls.mount("", str(path), "", _calls.MS_REMOUNT | _calls.MS_BIND | _calls.MS_RDONLY)
    return failed


def _below(path: Path, top: Path) -> bool:
    return path == top or top in path.parents


def _read_only(path: Path, table: list[mounts.Mounted]) -> bool:
    """Whether ``path`` lies on a file system that nobody can write to anyway."""
    holding = max((mount for mount in table if _below(path, mount.path)), key=lambda mount: len(mount.path.parts))
    return "ro" in holding.flags


def _shared_memory(made: Layers) -> None:
    """A /dev/shm of its own, in memory, with what was there: segments of the rerun end with it, and hurt nobody's."""
    if not _SHARED.is_dir():
        return
    _calls.mount("tmpfs", str(made.room), "tmpfs", _calls.MS_NOSUID | _calls.MS_NODEV, "mode=1777")
    try:
        layers = Layers(made.room, made.own_users)
        layers.cover(_SHARED)
        layers.close()
    except OSError:
        _calls.mount("tmpfs", str(_SHARED), "tmpfs", _calls.MS_NOSUID | _calls.MS_NODEV, "mode=1777")


def _freeze(table: list[mounts.Mounted], covered: list[Path]) -> list[Path]:
    """The file systems below the overlays become read-only, for all that is not covered."""
    frozen = []
    for mount in table:
        if not mount.holds_files or "ro" in mount.flags or mount.path == _SHARED:
            continue
        if any(_below(mount.path, top) for top in covered):
            continue
        flags = sum(flag for name, flag in _KEPT_FLAGS.items() if name in mount.flags)
        try:
            _calls.mount("", str(mount.path), "", _calls.MS_REMOUNT | _calls.MS_BIND | _calls.MS_RDONLY | flags)
        except OSError as error:
            if os.path.isdir(mount.path):  # else: hidden below another mount
                raise NotPossible(f"{mount.path} cannot be made read-only: {error}") from error
        else:
            frozen.append(mount.path)
    return frozen


def remove(folder: Path) -> None:
    """Delete the layers, the kernel's own folders of mode 000 in them included."""
    for root, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
