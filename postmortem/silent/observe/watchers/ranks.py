"""Ranks that train together: the state of each, for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Collective, Compared, Joined, Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.observe.recorder import Recorder

_ELEMENTS = 4096
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_reduce_coalesced", "all_gather_object")


@watcher
class Ranks(Watcher):
    """Joined, Wrapped, Collective, Compared; only in processes of a group."""

    order = 2

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._joined = -1
        self.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self._wrapped, always=True)
        for name in _COLLECTIVES if distributed.is_available() else ():
            if hasattr(distributed, name):
                self.wrap(distributed, name, self._exchanged(name))

    def _wrapped(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.recorder.add(Wrapped(stack()))

    def _exchanged(self, name: str) -> Callable[..., None]:
        def told(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            self.recorder.add(Collective(name, self.recorder.steps, place()))

        return told

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.recorder.sampled or not distributed.is_available() or not distributed.is_initialized():
            return
        if self._joined != self.recorder.pid:
            self._joined = self.recorder.pid
            self.recorder.add(Joined(distributed.get_rank(), distributed.get_world_size()))
        number, _ = self.recorder.optimizers.of(optimizer)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if not all(type(p) in (torch.Tensor, torch.nn.Parameter) and p.layout == torch.strided for p in held):
            return  # sharded: each rank has another part
        some = [_some(p) for p in held]
        sums = [[float(s.sum()), float(s.square().sum())] for s in some]
        gradients = [float(_some(p.grad).norm()) if p.grad is not None else 0.0 for p in held]
        shapes = [list(p.shape) for p in held]
        self.recorder.add(Compared(number, self.recorder.steps, shapes, sums, gradients))


def _some(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values()
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)].double()
