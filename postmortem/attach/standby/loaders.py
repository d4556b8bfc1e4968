"""What the program's DataLoaders give: recorded in the program, handed to its forked copies.

A copy must never read the queue of a worker: it shares it with the program. Loaders without workers are asked again in
the copy, where their data sets and generators are in the state of the fork.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.attach.standby.plan import Key

_WORKERS = dataloader._MultiProcessingDataLoaderIter
_NUMBER = "_postmortem_number"


class Record:
    """The batches that were given. recent: the last ones before the fork, as the program holds them; since: later."""

    def __init__(self) -> None:
        self._iterators = 0
        self.recent: deque[tuple[Key, Any]] = deque(maxlen=8)
        self.since: dict[Key, Any] = {}
        self.forked = False

    def number(self, iterator: Any) -> int:
        """The number of an iterator, in the order in which they give their first batch."""
        known: int | None = getattr(iterator, _NUMBER, None)
        if known is None:
            known = self._iterators
            setattr(iterator, _NUMBER, known)
            self._iterators += 1
        return known

    def took(self, iterator: Any, index: int, batch: Any) -> Key:
        """A batch was given."""
        key = self.number(iterator), index
        self.recent.append((key, batch))
        if self.forked:
            self.since[key] = batch
        return key

    def reach(self, passes: int) -> None:
        """Keeps as many batches as may have been drawn ahead for a tick with so many backward passes."""
        wanted = min(max(8, 2 * passes + 2), 128)
        if self.recent.maxlen != wanted:
            self.recent = deque(self.recent, maxlen=wanted)

    def fork(self) -> None:
        """A copy was forked: what is given from now on is unknown to it."""
        self.forked, self.since = True, {}


class MissingBatch(Exception):
    """A worker's batch that the program had not been given."""


def feed(record: Record, since: Mapping[Key, Any]) -> None:
    """For a copy: iterators with workers give the batches `since`, and draw the random numbers that they would draw."""

    def _next_data(self: Any) -> Any:
        key = record.number(self), self._num_yielded
        if key not in since:
            later = any(number > key[0] for number, _ in since)
            raise StopIteration if later else MissingBatch("a batch that the program had not been given yet")
        with suppress(StopIteration):
            self._next_index()
        return since[key]

    def __init__(self: Any, loader: Any) -> None:  # noqa: N807
        dataloader._BaseDataLoaderIter.__init__(self, loader)
        self._tasks_outstanding = 0
        with suppress(StopIteration):
            for _ in range(loader.prefetch_factor * loader.num_workers):
                self._next_index()

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        dataloader._BaseDataLoaderIter._reset(self, loader, first_iter)
        with suppress(StopIteration):
            for _ in range(loader.prefetch_factor * loader.num_workers):
                self._next_index()

    for method in (_next_data, __init__, _reset):
        setattr(_WORKERS, method.__name__, method)
    for name in ("__del__", "_shutdown_workers"):  # they would end the workers of the program
        setattr(_WORKERS, name, lambda self: None)
