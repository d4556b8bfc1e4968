"""A copy of the process sends nothing to other threads, processes and machines: these are not there, or not its own."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection, queues
from typing import TYPE_CHECKING, Any

from postmortem.attach.boundaries import network
from postmortem.attach.standby.loaders import NoBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postmortem.attach.standby.plan import Key


def fall_silent() -> None:
    """From now on. What a pool of threads is given to do is done at once, by the thread that gives it."""
    for owner, name in (
        (connection._ConnectionBase, "send"),
        (connection._ConnectionBase, "send_bytes"),
        (queues.Queue, "put"),
        (queues.SimpleQueue, "put"),
    ):
        setattr(owner, name, lambda self, *args, **kwargs: None)
    ThreadPoolExecutor.submit = _done_at_once  # type: ignore[method-assign]


def close_network(since: Mapping[Key, Any]) -> None:
    """From now on nothing is sent by a socket: what the program logs to a server was sent by the program itself.

    The thread that trains hears what the program has heard `since` the fork. What it sends to other machines seems to
    arrive, and where nothing more is known, its connection is refused; so are those of other threads.
    """
    far = _Far(since)
    for owner in network.CLASSES:
        for name, does in far.methods.items():
            if hasattr(owner, name):
                setattr(owner, name, far.only_here(does, getattr(owner, name) if name in _READS else _refused))
    ssl.SSLContext.wrap_socket = lambda self, sock, *args, **kwargs: sock  # type: ignore[method-assign]
    socket.getaddrinfo = _nowhere


_READS = ("recv", "recv_into")


class _Far:
    """Other machines, as a copy sees them."""

    def __init__(self, since: Mapping[Key, Any]) -> None:
        self._since, self._came, self._thread = since, 0, threading.get_ident()
        nothing = lambda *_, **__: None  # noqa: E731
        self.methods: dict[str, Callable[..., Any]] = {
            "connect": nothing,
            "connect_ex": lambda *_: 0,
            "do_handshake": nothing,
            "recv": lambda *_: self._heard(),
            "recv_into": lambda _, buffer, *__: network.put_into(buffer, self._heard()),
            "send": lambda _, data, *__: memoryview(data).nbytes,
            "sendall": nothing,
            "sendfile": _refused,
            "sendmsg": lambda _, buffers, *__: sum(memoryview(b).nbytes for b in buffers),
            "sendto": lambda _, data, *__: memoryview(data).nbytes,
        }

    def only_here(self, does: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """For the thread that trains, and for connections to other machines."""

        def method(connection: socket.socket, *args: Any, **kwargs: Any) -> Any:
            here = threading.get_ident() == self._thread and network.is_far(connection)
            return (does if here else otherwise)(connection, *args, **kwargs)

        return method

    def _heard(self) -> bytes:
        given = self._since.get((network.WAY, self._came), NoBatch(None))
        self._came += 1
        if isinstance(given, NoBatch):
            raise given.error or _error()
        heard: bytes = given
        return heard


def _nowhere(host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:  # noqa: A002
    """Nobody is asked where another machine is."""
    return [(socket.AF_INET, type or socket.SOCK_STREAM, proto, "", ("127.0.0.1", port))]


def _refused(*_: Any, **__: Any) -> Any:
    raise _error()


def _error() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "a forked copy of the process has no network")


def _done_at_once(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the future gives it to who asks
        done.set_exception(error)
    return done
