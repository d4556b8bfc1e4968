"""The sandbox methods, best first. Each is tried in a child process, so that a failed one has no effect."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.attach.sandbox import _calls, landlock, metadata, network, overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Needs:
    """What a way in has to give."""

    layers: Path  # where the layers of an overlay go
    session: Path  # stays writable
    must: Sequence[Path]  # folders whose files have to be protected
    way: Sequence[Path]  # folders in which the program may make new files: its home
    offline: bool
    stubs: Sequence[tuple[Path, Path]] = ()  # (stub, program it takes the place of)


class Refused(OSError):
    """This way is not open here; the message says why."""


@dataclass(frozen=True)
class Way:
    """One way in: namespaces with an overlay, Landlock, or none at all."""

    files: str  # overlay | landlock | none
    own_users: bool = False  # a user namespace: needs no privileges
    own_pids: bool = False  # a pid namespace: its end is the end of all in it

    def unshare(self, offline: bool) -> bool:
        """The namespaces of this way, for the calling process; whether the network is gone."""
        if self.files != "overlay":
            return offline and _network_gone()
        flags = _calls.CLONE_NEWNS | (_calls.CLONE_NEWNET if offline else 0)
        flags |= (_calls.CLONE_NEWUSER if self.own_users else 0) | (_calls.CLONE_NEWPID if self.own_pids else 0)
        user, group = os.geteuid(), os.getegid()
        try:
            _calls.unshare(flags)
            if self.own_users:
                _map_user(user, group)
        except OSError as error:
            raise Refused(f"no namespaces ({error}{_hint()})") from error
        return offline

    def protect(self, needs: Needs, offline: bool) -> str:
        """Shut the calling process in (in its new namespaces); how, in one line."""
        alone = "no network" if offline else ("the network stays open" if needs.offline else "network allowed")
        if offline:
            network.loopback_up()
        if self.files == "landlock":
            shared = Path("/dev/shm")  # workers hand over their batches there
            if any(path == shared or shared in path.parents for path in needs.must):
                raise Refused("Landlock cannot tell files in /dev/shm from shared memory")
            if not landlock.lock_writes([needs.session, Path("/proc"), *([shared] if shared.is_dir() else [])]):
                raise Refused("this kernel has no Landlock")
            held = "" if metadata.lock() else ", mode and times of files are not protected"
            return f"writing is denied outside of {needs.session}{held}, {alone}"
        if self.files == "none":
            return f"files are not protected, {alone}"
        try:
            covered, _ = overlay.enter(needs.layers, self.own_users, needs.must, [needs.session], needs.way)
        except OSError as error:
            raise Refused(f"no overlay ({error}{_hint()})") from error
        if offline:
            network.name_here(needs.session)
        for stub, program in needs.stubs:
            _calls.mount(str(stub), str(program), "", _calls.MS_BIND)
        if self.own_pids:
            try:
                _calls.mount("proc", "/proc", "proc", _calls.MS_NOSUID | _calls.MS_NODEV | _calls.MS_NOEXEC)
            except OSError as error:
                raise Refused(f"no /proc ({error})") from error
        shown = ", ".join(map(str, covered[:6])) + (", …" if len(covered) > 6 else "")
        return f"writes go to an overlay over {shown}, {alone}"


def ways(sandbox: str) -> list[Way]:
    """The ways to try for ``auto``, ``overlay``, ``landlock`` or ``none``, best first."""
    users = (False, True) if os.geteuid() == 0 else (True,)
    overlays = [Way("overlay", own_users, own_pids) for own_pids in (True, False) for own_users in users]
    known: dict[str, Callable[[], list[Way]]] = {
        "auto": lambda: [*overlays, Way("landlock")],
        "overlay": lambda: overlays,
        "landlock": lambda: [Way("landlock")],
        "none": lambda: [Way("none")],
    }
    if sandbox not in known:
        raise ValueError(f"sandbox is one of {', '.join(known)}, not {sandbox!r}")
    return known[sandbox]()


def _hint() -> str:
    """What stands in the way on Ubuntu since 23.10, and other systems that have the same switches."""
    for name, wanted in (
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
        ("kernel.unprivileged_userns_clone", "1"),
    ):
        switch = Path("/proc/sys", *name.split("."))
        if os.geteuid() and switch.is_file() and switch.read_text().strip() != wanted:
            return f"; `sudo sysctl {name}={wanted}` allows it"
    return ""


def _map_user(user: int, group: int) -> None:
    """The user keeps number and rights: files look as before, and the program has no privileges in the namespace."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _network_gone() -> bool:
    user, group = os.geteuid(), os.getegid()
    try:
        if user == 0:
            _calls.unshare(_calls.CLONE_NEWNET)
        else:
            _calls.unshare(_calls.CLONE_NEWUSER | _calls.CLONE_NEWNET)
            _map_user(user, group)
    except OSError:
        return False
    return True
