"""Softmaxes: the dimension they are computed over."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Normalised
from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_TOLD = 6


@watcher
class Softmaxes(Watcher):
    """Normalised."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._given: tuple[int, ...] = ()
        self._told: Counter[Place | None] = Counter()
        self._seen: set[tuple[Place | None, tuple[int, ...], tuple[int, ...]]] = set()
        for owner in (torch, torch.Tensor):
            for name in ("softmax", "log_softmax"):
                self.wrap(owner, name, self._taken)

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        if len(running) == 1:
            tensors = [a for a in args if isinstance(a, torch.Tensor) and a.dim()]
            self._given = tuple(tensors[0].shape[:2]) if tensors else ()

    def left(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any, running: list[torch.nn.Module]) -> None:
        if len(running) == 1:
            self._given = ()

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if args else kwargs.get("input")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(given, torch.Tensor) or not isinstance(dim, int) or not given.dim():
            return
        at, shape = place(), tuple(given.shape)
        if (at, shape, self._given) in self._seen or self._told[at] >= _TOLD:
            return
        self._seen.add((at, shape, self._given))
        self._told[at] += 1
        taken = Normalised(
            self.recorder.steps, shape, dim % given.dim(), self._given, self.recorder.grad and given.requires_grad, at
        )
        self.recorder.add(taken)
