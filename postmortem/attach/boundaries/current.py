"""The current observer: one at a time receives the events of the patches in this folder."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from postmortem.attach.observer import Observer
from postmortem.attach.turns import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class Listener:
    """The current observer, and what the patches know of the program.

    ticks: ticks that have ended. backwards: backward passes since the last tick. nested: depth of backward passes that
    run now. optimizers: all that were made; `stepped`: those that made a tick. stepping: depth of nested optimizer
    steps. scaling: the step of a GradScaler that runs now. unscaled: id of a scaled loss -> (itself, the loss before).
    turns: the last ticks, each with the id of its optimizer. threads: those that made a tick. waited: seconds in which
    loaders drew batches, since who measures that set it back. iterations: of loaders, that have begun.
    """

    def __init__(self) -> None:
        self.observer = Observer()
        self.ticks = 0
        self.backwards = 0
        self.nested = 0
        self.optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.stepped: WeakSet[torch.optim.Optimizer] = WeakSet()
        self.turns: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self.threads: set[int] = set()
        self.stepping = 0
        self.scaling: Any = None
        self.unscaled: dict[int, tuple[Any, Any]] = {}
        self.waited = 0.0
        self.iterations = self.processes = 0
        self._copies: int | None = None

    def ended(self, optimizer: torch.optim.Optimizer, *, skipped: bool) -> None:
        """An optimizer's step, or a scaler's, has ended: one tick."""
        self.stepped.add(optimizer)
        self.turns.append((self.ticks, id(optimizer)))
        self.threads.add(threading.get_ident())
        observer, number = self.observer, self.ticks
        observer.after_update(optimizer, skipped)
        self.ticks, self.backwards = number + 1, 0
        self.unscaled.clear()
        observer.tick(number)

    @contextmanager
    def copy(self) -> Iterator[None]:
        """What this thread forks inside is a copy of ours, and none of the program's processes."""
        self._copies = threading.get_ident()
        try:
            yield
        finally:
            self._copies = None

    def copying(self) -> bool:
        """Whether this thread is in `copy`."""
        return self._copies == threading.get_ident()

    def forked(self) -> None:
        """This process was forked by the program: the only place where a watcher learns that it lives in another."""
        self.ticks = self.backwards = 0
        self.turns.clear()
        before, self.observer = self.observer, Observer()
        self.observer = before.in_fork()


listener = Listener()


def current() -> Observer:
    """The observer that is told at present."""
    return listener.observer


def exchange(observer: Observer) -> Observer:
    """From now on `observer` is told; returns the one before it."""
    before, listener.observer = listener.observer, observer
    return before


def before_scaling(loss: torch.Tensor) -> torch.Tensor:
    """The loss that a GradScaler multiplied to get this one; the same tensor where there was none."""
    known = listener.unscaled.get(id(loss))
    return known[1] if known is not None and known[0] is loss else loss
