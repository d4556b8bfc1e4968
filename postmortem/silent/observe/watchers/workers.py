"""Workers of loaders: the state of the random generators that they draw from."""

from __future__ import annotations

import random
import sys
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch

from postmortem.silent.facts import WorkerDrew
from postmortem.silent.observe.places import stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder

_BATCHES = 2


@watcher
class Workers(Watcher):
    """WorkerDrew."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._made: dict[int, tuple[weakref.ref[Any], Stack]] = {}
        """Where the first living loader of a dataset was made, by id: a list has no weak references."""
        self._batches = 0
        self._parent = recorder.pid
        self.wrap(DataLoader, "__init__", self._loader, always=True)
        self.wrap(fetch._MapDatasetFetcher, "fetch", self._fetched)

    def _loader(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        loader, number = args[0], id(args[0].dataset)
        if number not in self._made or self._made[number][0]() is None:
            self._made[number] = weakref.ref(loader), stack()

    def _fetched(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        worker = get_worker_info()
        if worker is None or self._batches >= _BATCHES:
            return
        self._batches += 1
        number = id(worker.dataset)  # the same in a forked worker
        if number in self._made:
            states = {name: _state(generator) for name, generator in _generators(worker.dataset).items()}
            made = self._made[number][1]
            self.recorder.add(WorkerDrew(self._parent, number, worker.id, worker.seed, self._batches, states, made))
            self.recorder.save()


def _generators(dataset: Any) -> dict[str, Any]:
    """The global ones, and those that a dataset (or one that it holds) and its module have, by name."""
    found: dict[str, Any] = {"torch": torch.default_generator, "random": random}
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        found["numpy.random"] = numbers.mtrand._rand
    inner = getattr(dataset, "dataset", None)
    reading = getattr(type(dataset if inner is None else inner), "__getitem__", None)
    places = [(f"{type(each).__name__}.", vars(each)) for each in (dataset, inner) if hasattr(each, "__dict__")]
    for prefix, names in (*places, ("", getattr(reading, "__globals__", {}))):
        found |= {f"{prefix}{name}": value for name, value in list(names.items()) if _is_generator(value)}
    return found


def _is_generator(value: Any) -> bool:
    own = isinstance(value, (torch.Generator, random.Random))
    return own or (
        type(value).__module__.startswith("numpy.random") and type(value).__name__ in ("Generator", "RandomState")
    )


def _state(generator: Any) -> int:
    """The same number for the same state."""
    if isinstance(generator, torch.Generator):
        return zlib.crc32(generator.get_state().numpy().tobytes())
    if hasattr(generator, "bit_generator"):
        state = generator.bit_generator.state
    else:
        state = generator.get_state() if hasattr(generator, "get_state") else generator.getstate()
    if isinstance(state, tuple) and hasattr(state[1], "tobytes"):
        state = state[1].tobytes(), state[2:]
    return zlib.crc32(repr(state).encode())
