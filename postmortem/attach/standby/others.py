"""A copy of the process sends nothing to other threads and processes: these are not there, or not its own."""

from __future__ import annotations

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


def _done_at_once(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the future gives it to who asks
        done.set_exception(error)
    return done
