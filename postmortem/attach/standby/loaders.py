"""The batches of the program's DataLoaders, and what else other threads and processes give to it: recorded in the
program, given to its forked copies.

A copy must never read the queue of a worker: it shares it with the program. Loaders without workers are asked again in
the copy, where their data sets and generators are in the state of the fork.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader

from postmortem.attach.boundaries.loaders import iteration_of, last_asked
from postmortem.replay.step.batches import tensor_map, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postmortem.attach.standby.plan import Key

_WORKERS = dataloader._MultiProcessingDataLoaderIter
_PART = 8  # of the memory that is there, batches may take one part
_MOST = 100_000  # things that are kept
_LEAST = 2  # batches that may have been drawn ahead


@dataclass(frozen=True, slots=True)
class NoBatch:
    """What was raised instead: StopIteration at the end of an iteration. None: what cannot be handed to another
    process."""

    error: Exception | None


class Record:
    """What was given, in the order in which it was asked for.

    A batch has the key of `plan`; what was received by one of the `boundaries.channels` has the number of that, which
    is negative, and its place in what came that way since the fork.

    recent: the last batches before the fork, as the program holds them; since: what was given later, a batch or a
    `NoBatch`, as it was then: the program may change a batch in place, and one that a worker made takes a descriptor
    and shared memory. room: bytes that may be kept of them; full: it was not enough, and nothing more is kept.
    """

    def __init__(self) -> None:
        self.recent: deque[tuple[Key, Any]] = deque(maxlen=8)
        self.since: dict[Key, Any] = {}
        self.forked = self.full = False
        self.room = 0
        self._shared = _shared_memory() // _PART
        self._came: Counter[int] = Counter()

    def took(self, iterator: Any, index: int, batch: Any) -> Key:
        """A batch was given, when the iterator was asked for the `index`-th time in its iteration."""
        key = iteration_of(iterator), index
        self.recent.append((key, batch))
        self._give_back()
        if self.forked:
            self._keep(key, batch)
        return key

    def _keep(self, key: Key, batch: Any) -> None:
        try:
            with _disable_current_modes(), torch.no_grad():
                kept = tensor_map(torch.clone, batch)
                self.room -= sum(t.nbytes for t in tensors_in(kept)) + (len(kept) if isinstance(kept, bytes) else 0)
        except Exception:  # noqa: BLE001 - a class of the user's may raise whatever it likes
            kept = NoBatch(None)
        self.since[key] = kept
        if self.room < 0 or len(self.since) > _MOST:
            self.forked, self.full, self.since = False, True, {}

    def _give_back(self) -> None:
        """Lets go of batches that a worker made, where they are a large part of the memory that it can make them in."""
        held = [_bytes_shared(batch) for _, batch in self.recent]
        while sum(held) > self._shared and len(held) > _LEAST:
            held.pop(0)
            self.recent.popleft()

    def refused(self, iterator: Any, index: int, error: Exception) -> None:
        """No batch was given."""
        if self.forked:
            self.since[iteration_of(iterator), index] = NoBatch(error)

    def received(self, way: int, ask: Callable[[], Any]) -> Any:
        """Asks another thread or process, and keeps what it gives."""
        key = way, self._came[way]
        self._came[way] += 1
        try:
            value = ask()
        except Exception as error:
            if self.forked:
                self.since[key] = NoBatch(error)
            raise
        if self.forked:
            self._keep(key, value)
        return value

    def reach(self, passes: int) -> None:
        """Keeps as many batches as may have been drawn ahead for a tick with so many backward passes."""
        wanted = min(max(8, 2 * passes + 2), 128)
        if self.recent.maxlen != wanted:
            self.recent = deque(self.recent, maxlen=wanted)

    def fork(self) -> None:
        """A copy was forked: what is given from now on is unknown to it."""
        self.forked, self.full, self.since = True, False, {}
        self._came.clear()
        self.room = _free_memory() // _PART

    def portable(self) -> dict[Key, Any]:
        """What was given since the fork, as far as it can be handed to another process."""
        found = {}
        for key, given in self.since.items():
            try:
                data = pickle.dumps(given)
                if isinstance(given, NoBatch):
                    pickle.loads(data)  # an exception may be written, and not be read
                found[key] = given
            except Exception:  # noqa: BLE001 - a class of the user's may raise whatever it likes
                found[key] = NoBatch(None)
        return found


def _bytes_shared(batch: Any) -> int:
    with _disable_current_modes():
        shared = (t for t in tensors_in(batch) if t.device.type == "cpu" and t.is_shared())  # type: ignore[no-untyped-call]
        return sum(t.untyped_storage().nbytes() for t in shared)


def _shared_memory() -> int:
    """Bytes of shared memory that the system allows in all; a container often has 64 MB."""
    try:
        there = os.statvfs("/dev/shm")
    except (OSError, AttributeError):  # another system
        return 1 << 30
    return there.f_blocks * there.f_frsize


def _free_memory() -> int:
    """Bytes of memory that are there for new uses."""
    with suppress(OSError, IndexError, ValueError), open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    return 8 << 30


class MissingBatch(Exception):
    """A worker's batch that the program had not been given."""


def feed(since: Mapping[Key, Any]) -> None:
    """For a copy: iterators with workers do what they did `since`, and draw the random numbers that they would draw."""

    def _next_data(self: Any) -> Any:
        key = iteration_of(self), last_asked(self)
        if key not in since:
            raise MissingBatch("a batch that the program had not been given yet")
        given = since[key]
        error = given.error if isinstance(given, NoBatch) else None
        if isinstance(given, NoBatch) and error is None:
            raise MissingBatch("what a worker raised or gave cannot be handed to another process")
        if not isinstance(error, StopIteration):
            with suppress(StopIteration):
                self._next_index()
        if error is not None:
            raise error
        return given

    def __init__(self: Any, loader: Any) -> None:  # noqa: N807
        dataloader._BaseDataLoaderIter.__init__(self, loader)
        self._tasks_outstanding = 0
        self._reset(loader, first_iter=True)

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        dataloader._BaseDataLoaderIter._reset(self, loader, first_iter)
        with suppress(StopIteration):
            for _ in range(loader.prefetch_factor * loader.num_workers):
                self._next_index()

    for method in (_next_data, __init__, _reset):
        setattr(_WORKERS, method.__name__, method)
    for name in ("__del__", "_shutdown_workers"):  # they would end the workers of the program
        setattr(_WORKERS, name, lambda self: None)
