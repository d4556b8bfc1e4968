"""What the program gets from its other threads and processes: by queues, pipes, pools, futures and managers.

A forked copy has neither the threads nor the right to talk to the processes, so that it has to be told what they gave.
"""

from __future__ import annotations

import functools
import queue
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import connection, managers, pool, queues
from typing import TYPE_CHECKING, Any

from postmortem.attach.boundaries.current import listener

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAYS: tuple[tuple[Any, str], ...] = (
    (queue.Queue, "get"),
    (queues.Queue, "get"),
    (queues.SimpleQueue, "get"),
    (connection._ConnectionBase, "recv"),
    (connection._ConnectionBase, "recv_bytes"),
    (connection._ConnectionBase, "poll"),
    (pool.ApplyResult, "get"),
    (pool.IMapIterator, "next"),
    (Future, "result"),
    (Future, "exception"),
    (managers.BaseProxy, "_callmethod"),
)
"""Class, and its method that waits for another thread or process."""


class _Inside(threading.local):
    """Whether this thread is in one of these methods already: a queue reads a pipe."""

    now = False


_inside = _Inside()


def way_of(owner: Any, name: str) -> int:
    """The number of a way, under which it is told."""
    return -1 - _WAYS.index((owner, name))


@contextmanager
def receiving() -> Iterator[None]:
    """What is received inside is a part of something that is told as a whole."""
    before, _inside.now = _inside.now, True
    try:
        yield
    finally:
        _inside.now = before


def patch_channels() -> None:
    """Each of these methods becomes an event, `Observer.receive`. A way has a negative number, by its place above."""
    for owner, name in _WAYS:
        setattr(owner, name, told(way_of(owner, name), getattr(owner, name)))
    pool.IMapIterator.__next__ = pool.IMapIterator.next  # type: ignore[method-assign]


def told(way: int, asking: Any) -> Any:
    """A method that waits for another thread, process or machine, as an event of the current observer."""

    @functools.wraps(asking)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _inside.now:
            return asking(self, *args, **kwargs)
        with receiving():
            return listener.observer.receive(way, self, functools.partial(asking, self, *args, **kwargs))

    return method
