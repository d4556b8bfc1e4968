"""No network except the loopback device, which the ranks of a training use."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from postmortem.attach.sandbox import _calls

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def loopback_up() -> None:
    """The loopback device of a new network namespace is down: bring it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(wire, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(wire, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


def name_here(folder: Path) -> None:
    """The machine's name means the loopback device: torchrun and gloo look it up, and no server can answer.

    For a process in a mount namespace of its own.
    """
    name = os.uname().nodename
    hosts = Path("/etc/hosts")
    if not hosts.is_file():
        return
    lines = []
    for line in hosts.read_text(errors="replace").splitlines():
        address, *names = line.split("#")[0].split() or [""]
        lines.append(" ".join(["127.0.0.1", *names]) if name in names and "." in address else line)
    ours = folder / "hosts"
    ours.write_text("\n".join([*lines, f"127.0.0.1 localhost {name}", ""]))
    ours.chmod(0o644)
    _calls.mount(str(ours), str(hosts), "", _calls.MS_BIND)
