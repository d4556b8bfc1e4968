"""Several processes that share the runs of a scan: each takes the next one as soon as it is free.

On Linux they are forked, elsewhere they are started anew. A process that dies costs the item that it had, and is
replaced.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from postmortem.core.errors import PostmortemError
from postmortem.core.progress import listening, progressed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from postmortem.runs.claimed import RunFiles

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

_RUN_SECONDS, _BYTES_PER_SECOND = 0.005, 1e8
"""About what a run costs, and its bytes: to decide whether several processes are worth their start."""
_SECONDS_EACH = 0.5
"""Less work than this is not worth a process."""
_MOST = 32
"""Processes that are started unless more are asked for: each takes memory."""
_REPORTED_SECONDS = 0.2
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Work(Protocol[Item_contra, Result_co]):
    """What the processes do: it can be pickled where they are not forked."""

    def inside(self, note: Callable[[str], None]) -> AbstractContextManager[None]:
        """Entered once in each process; `note` is called with what the user should know."""

    def __call__(self, item: Item_contra, /) -> Result_co:
        """The result of one item, which can be pickled."""

    def lost(self, item: Item_contra, /, why: str) -> Result_co:
        """Stands for the result of an item whose process died."""


def worthwhile(found: Sequence[RunFiles]) -> int:
    """How many processes these runs are worth on this machine: 1 where they are read in a moment."""
    seconds = len(found) * _RUN_SECONDS + sum(map(size_of, found)) / _BYTES_PER_SECOND
    return max(1, min(len(found), cores(), _MOST, math.ceil(seconds / _SECONDS_EACH)))


def cores() -> int:
    """The processors that this process may use: those it is bound to, within the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no quota: "max 100000"
        quota, period = _QUOTA.read_text().split()
        allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def size_of(files: RunFiles) -> int:
    """Bytes of the files of a run."""
    total = 0
    for part in files.parts:
        with suppress(OSError):  # its reading reports why
            total += part.path.stat().st_size
    return total


class Processes(Generic[Item, Result]):
    """Runs `work` on each of `items` in `jobs` processes."""

    def __init__(self, work: Work[Item, Result], items: Sequence[Item], jobs: int, note: Callable[[str], None]) -> None:
        self.work, self.items, self.jobs = work, items, min(jobs, len(items))
        self.note = note
        import multiprocessing  # not at the start of each scan: most need no other process

        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._workers: dict[Connection, _Worker] = {}

    def results(self, order: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """(index, result) of each item as it is done; they are begun in this order. Raises what the work raises."""
        from multiprocessing import connection

        left = list(reversed(order))
        try:
            for _ in range(self.jobs):
                self._start(left.pop())
            while self._workers:
                ready = connection.wait(list(self._workers))
                for worker in [w for w in self._workers.values() if w.connection in ready]:
                    yield from self._heard(worker, left)
        finally:
            for worker in self._workers.values():
                worker.process.terminate()
                worker.connection.close()
                worker.process.join()

    def _start(self, index: int) -> None:
        here, there = self._context.Pipe()
        others = [here, *self._workers] if self._context.get_start_method() == "fork" else []
        process = self._context.Process(target=_worked, args=(self.work, self.items, there, others), daemon=True)
        process.start()
        there.close()
        self._workers[here] = _Worker(process, here, index)
        here.send(index)

    def _heard(self, worker: _Worker, left: list[int]) -> Iterator[tuple[int, Result]]:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            yield self._died(worker, left)
            return
        if kind == "note":
            self.note(value)
        elif kind == "progress":
            progressed(*value)
        elif kind == "error":
            raise value
        else:
            index = worker.index
            if left:
                worker.index = left.pop()
                worker.connection.send(worker.index)
            else:
                self._stop(worker)
            yield index, value

    def _died(self, worker: _Worker, left: list[int]) -> tuple[int, Result]:
        self._stop(worker)
        code = worker.process.exitcode or 0
        why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            why += ", as when memory runs out"
        if left:
            self._start(left.pop())
        return worker.index, self.work.lost(self.items[worker.index], f"the process that read it {why}")

    def _stop(self, worker: _Worker) -> None:
        del self._workers[worker.connection]
        worker.connection.close()  # it ends when nothing more can come
        worker.process.join()


class _Worker:
    def __init__(self, process: BaseProcess, connection: Connection, index: int) -> None:
        self.process, self.connection, self.index = process, connection, index


def _worked(work: Work[Any, Any], items: Sequence[Any], connection: Connection, others: Sequence[Connection]) -> None:
    """The life of a process: takes the indices of items from the connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it ends it
    for other in others:  # inherited: while they are open here, nobody sees them end
        other.close()
    with (
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
        _listening(connection),
        work.inside(lambda text: connection.send(("note", text))),
    ):
        while True:
            index = connection.recv()
            try:
                answer = ("done", work(items[index]))
            except Exception as error:  # noqa: BLE001 - raised where the results are asked for
                answer = ("error", _sendable(error))
            connection.send(answer)


@contextmanager
def _listening(connection: Connection) -> Iterator[None]:
    last = 0.0

    def send(*state: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _REPORTED_SECONDS:
            last = now
            connection.send(("progress", state))

    with listening(send):
        yield


def _sendable(error: Exception) -> Exception:
    """The error, or one with its message where it cannot be pickled."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else PostmortemError(str(error))
    except Exception:  # noqa: BLE001 - an error of any class, with any arguments
        return PostmortemError(f"{type(error).__name__}: {error}")
