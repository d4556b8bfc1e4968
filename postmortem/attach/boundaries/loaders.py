"""The batches of the program's DataLoaders and the ends of their epochs, as events in the order of the requests."""

from __future__ import annotations

import functools
import time
from typing import Any

from torch.utils.data import dataloader

from postmortem.attach.boundaries.channels import receiving
from postmortem.attach.boundaries.current import listener

_PLACE = "_postmortem_place"


def patch_loaders() -> None:
    """An iteration has a number from its begin on, so that it has the same one in a forked copy of the process."""
    kind: Any = dataloader._BaseDataLoaderIter
    drawing = kind.__next__

    def numbered(begin: Any) -> Any:
        @functools.wraps(begin)
        def begins(self: Any, *args: Any, **kwargs: Any) -> None:
            _begin(self)
            begin(self, *args, **kwargs)

        return begins

    @functools.wraps(drawing)
    def __next__(self: Any) -> Any:  # noqa: N807
        iteration, asked = getattr(self, _PLACE, None) or _begin(self)
        setattr(self, _PLACE, (iteration, asked + 1))
        began = time.perf_counter()
        try:
            with receiving():
                batch = drawing(self)
        except Exception as error:
            listener.waited += time.perf_counter() - began
            listener.observer.no_batch(self, asked, error)
            raise
        listener.waited += time.perf_counter() - began
        return listener.observer.batch(self, asked, batch)

    kind.__init__, kind._reset, kind.__next__ = numbered(kind.__init__), numbered(kind._reset), __next__


def _begin(iterator: Any) -> tuple[int, int]:
    listener.iterations += 1
    setattr(iterator, _PLACE, (listener.iterations, 0))
    return listener.iterations, 0


def iteration_of(iterator: Any) -> int:
    """The number of the iteration that an iterator is in; with persistent workers it makes several."""
    return int(getattr(iterator, _PLACE)[0])


def last_asked(iterator: Any) -> int:
    """How many times the iterator had been asked, in its iteration, before the last time."""
    return int(getattr(iterator, _PLACE)[1]) - 1
