"""What the program hears from other machines: the answers of a tracker's server, data that are streamed.

A forked copy sends nothing, so it is told what the program heard, in the same order, and goes on as the program did.
"""

from __future__ import annotations

import functools
import socket
import ssl
from typing import Any

from postmortem.attach.boundaries.channels import told

WAY = -1000
"""The number under which it is told; the others are those of `channels`."""
CLASSES: tuple[Any, ...] = (socket.socket, ssl.SSLSocket)
"""The second one has methods of its own to read."""


def patch_network() -> None:
    """What a socket reads becomes an event, `Observer.receive`: the bytes, or what was raised."""
    for owner in CLASSES:
        owner.recv = _heard(owner.recv)
        owner.recv_into = _heard_into(owner.recv_into)


def is_far(connection: socket.socket) -> bool:
    """Whether the other side may be another machine; the processes of this one are told by `channels`."""
    return connection.family in (socket.AF_INET, socket.AF_INET6)


def _heard(reading: Any) -> Any:
    telling = told(WAY, reading)

    @functools.wraps(reading)
    def recv(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (telling if is_far(self) else reading)(self, *args, **kwargs)

    return recv


def _heard_into(reading: Any) -> Any:
    def bytes_of(self: Any, buffer: Any, *args: Any, **kwargs: Any) -> bytes:
        size = reading(self, buffer, *args, **kwargs)
        return bytes(memoryview(buffer).cast("B")[:size])

    telling = told(WAY, bytes_of)

    @functools.wraps(reading)
    def recv_into(self: Any, buffer: Any, *args: Any, **kwargs: Any) -> int:
        if is_far(self):
            return put_into(buffer, telling(self, buffer, *args, **kwargs))
        return int(reading(self, buffer, *args, **kwargs))

    return recv_into


def put_into(buffer: Any, heard: bytes) -> int:
    """Writes what was heard into the buffer of who reads -> how many bytes that are."""
    memoryview(buffer).cast("B")[: len(heard)] = heard
    return len(heard)
