"""A copy of the process sends nothing to other threads, processes and machines: these are not there, or not its own."""

from __future__ import annotations

import errno
import socket
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection, queues
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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


_TALKS = ("connect", "connect_ex", "send", "sendall", "sendfile", "sendmsg", "sendto")


def close_network() -> None:
    """From now on nothing is sent by a socket: what the program logs to a server was sent by the program itself."""
    for name in _TALKS:
        setattr(socket.socket, name, _refused)
    tls: Any = sys.modules.get("ssl")
    for name in (*_TALKS, "do_handshake") if tls is not None else ():
        setattr(tls.SSLSocket, name, _refused)


def _refused(self: socket.socket, *_: Any, **__: Any) -> Any:
    raise ConnectionRefusedError(errno.ECONNREFUSED, "a forked copy of the process has no network")


def _done_at_once(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the future gives it to who asks
        done.set_exception(error)
    return done
