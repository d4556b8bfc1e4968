"""Loaders: in which order they read, and which one gave the last batch; seeds that are set, indices that are drawn, and
parts of the data that are stacked."""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from postmortem.silent.facts import Drawn, LoaderBegun, LoaderMade, Seeded
from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Stacked

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_TOLD = 20
"""So many calls of one line are told."""
_ORDERS = {SequentialSampler: "sequential", RandomSampler: "random"}
_PARTS = 4096
"""Of more that are stacked nothing is told."""


@watcher
class Loaders(Watcher):
    """LoaderMade, LoaderBegun, Seeded, Drawn, Stacked."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._numbers, self._readers = Numbers(), Numbers()
        self._of_reader: dict[int, int] = {}
        self._told: Counter[tuple[str, Place | None]] = Counter()
        self.wrap(DataLoader, "__init__", self._made, always=True)
        self.wrap(DataLoader, "__iter__", self._begun, always=True)
        self.wrap(_BaseDataLoaderIter, "__next__", self._gave)
        self.wrap(torch, "manual_seed", self._seeded)
        self.wrap(random, "seed", self._seeded)
        self.wrap(torch, "randint", self._drawn)
        self.wrap(torch, "stack", self._stacked)
        if "numpy.random" in sys.modules:
            for name in ("seed", "default_rng"):  # RandomState is a class, which programs compare types with
                self.wrap(sys.modules["numpy.random"], name, self._seeded)

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        loader = args[0]
        try:
            samples = len(loader.dataset)
        except (TypeError, NotImplementedError):
            samples = None
        batches = loader.batch_sampler
        while isinstance(getattr(batches, "batch_sampler", None), BatchSampler):  # libraries wrap it, a part per rank
            batches = batches.batch_sampler
        sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
        order = next((word for kind, word in _ORDERS.items() if isinstance(sampler, kind)), type(sampler).__name__)
        size = loader.batch_size if batches is None else getattr(batches, "batch_size", None)
        number = self._numbers.of(loader)[0]
        self.recorder.add(LoaderMade(number, samples, size, order, loader.num_workers, stack()))

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        number = self._numbers.of(args[0])[0]
        self._of_reader[self._readers.of(result)[0]] = number
        if self._few("begun"):
            self.recorder.add(LoaderBegun(number, self.recorder.steps, place()))

    def _gave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.recorder.loader = self._of_reader.get(self._readers.of(args[0])[0])

    def _seeded(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        seed = next(iter((*args, *kwargs.values())), None)
        if isinstance(seed, int) and self._few("seeded"):
            self.recorder.add(Seeded(self.recorder.steps, seed, place()))

    def _drawn(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A generator of the program's own cannot be told of when it is seeded: what it draws shows it."""
        limits = [a for a in args if isinstance(a, int)]
        high = kwargs.get("high", limits[-1] if limits else 0)
        low = kwargs.get("low", limits[0] if len(limits) > 1 else 0)
        if kwargs.get("generator") is not None and result.numel() > 1 and self._few("drawn"):
            digest = zlib.crc32(result.cpu().contiguous().numpy().tobytes())
            self.recorder.add(Drawn(self.recorder.steps, result.numel(), high - low, digest, place()))

    def _stacked(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Parts of a tensor that is no part of a graph."""
        parts = args[0] if args else kwargs.get("tensors", ())
        whole = parts[0]._base if isinstance(parts, (list, tuple)) and 1 < len(parts) <= _PARTS else None
        if (
            whole is None
            or whole.requires_grad
            or any(type(part) is not torch.Tensor or part._base is not whole for part in parts)
        ):
            return
        if self._few("stacked"):
            where = repr([(part.storage_offset(), *part.shape) for part in parts]).encode()
            used, of = sum(part.numel() for part in parts), whole.numel()
            self.recorder.add(Stacked(self.recorder.steps, len(parts), used, of, zlib.crc32(where), place()))

    def _few(self, what: str) -> bool:
        at = place()
        self._told[what, at] += 1
        return self._told[what, at] <= _TOLD
