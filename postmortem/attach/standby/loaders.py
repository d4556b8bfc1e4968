"""What the program's DataLoaders give: recorded in the program, handed to its forked copies.

A copy must never read the queue of a worker: it shares it with the program. Loaders without workers are asked again in
the copy, where their data sets and generators are in the state of the fork.
"""

from __future__ import annotations

import pickle
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

from postmortem.attach.boundaries.loaders import iteration_of, last_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.attach.standby.plan import Key

_WORKERS = dataloader._MultiProcessingDataLoaderIter


@dataclass(frozen=True, slots=True)
class NoBatch:
    """What a loader raised: StopIteration at the end of an iteration. None: it cannot be handed to another process."""

    error: Exception | None


class Record:
    """What was given, in the order in which it was asked for.

    recent: the last batches before the fork, as the program holds them; since: what was given later, a batch or a
    `NoBatch`.
    """

    def __init__(self) -> None:
        self.recent: deque[tuple[Key, Any]] = deque(maxlen=8)
        self.since: dict[Key, Any] = {}
        self.forked = False

    def took(self, iterator: Any, index: int, batch: Any) -> Key:
        """A batch was given, when the iterator was asked for the `index`-th time in its iteration."""
        key = iteration_of(iterator), index
        self.recent.append((key, batch))
        if self.forked:
            self.since[key] = batch
        return key

    def refused(self, iterator: Any, index: int, error: Exception) -> None:
        """No batch was given."""
        if self.forked:
            self.since[iteration_of(iterator), index] = NoBatch(error)

    def reach(self, passes: int) -> None:
        """Keeps as many batches as may have been drawn ahead for a tick with so many backward passes."""
        wanted = min(max(8, 2 * passes + 2), 128)
        if self.recent.maxlen != wanted:
            self.recent = deque(self.recent, maxlen=wanted)

    def fork(self) -> None:
        """A copy was forked: what is given from now on is unknown to it."""
        self.forked, self.since = True, {}

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
            raise MissingBatch("a batch that cannot be handed to another process")
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
