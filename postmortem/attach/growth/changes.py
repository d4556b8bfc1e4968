"""In the process of the program: the change that is tried, from one optimizer step to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from postmortem.attach.boundaries.current import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Change:
    """order: `begin` and `end`, the first and the last optimizer step that are changed, and one of `rate` (a factor of
    the learning rates, or one for each group), `most` (the highest learning rate of each group), `clip` (the largest
    gradient norm), `hold` (the module that keeps its values, "" for all) and `hold_others` (all but this module do).
    `used` is written once it has had an effect.

    What is held is put back after each step of an optimizer, and before the first forward pass of each step: the
    program may change its weights by itself.
    """

    def __init__(self, order: dict[str, Any], module: Callable[[str], torch.nn.Module | None], used: Path) -> None:
        self._order, self._module, self._used = order, module, used
        self._rates: list[float] = []
        self._kept: dict[torch.Tensor, torch.Tensor] = {}
        self._put_back = -1  # the tick before whose first forward pass that was done

    def install(self) -> None:
        """From now on."""
        optimizers.register_optimizer_step_pre_hook(self._before)
        optimizers.register_optimizer_step_post_hook(self._after)
        modules.register_module_forward_pre_hook(self._forward)

    def _active(self) -> bool:
        return bool(self._order["begin"] <= listener.ticks <= self._order["end"])

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._active():
            return
        if "rate" in self._order or "most" in self._order:
            self._lower(optimizer.param_groups)
        elif "clip" in self._order:
            self._clip(optimizer)
        else:
            for t in self._held(optimizer):
                if t not in self._kept:
                    self._kept[t] = t.detach().clone()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []
        if self._active():
            self._hold()

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._kept and self._active() and self._put_back != listener.ticks and not listener.nested:
            self._put_back = listener.ticks
            self._hold()

    def _hold(self) -> None:
        with torch.no_grad():
            for t, value in self._kept.items():
                t.copy_(value)
                self._used.touch()

    def _lower(self, groups: list[dict[str, Any]]) -> None:
        change = self._order["most"] if "most" in self._order else self._order["rate"]
        each = change if isinstance(change, list) else [change] * len(groups)
        if len(each) != len(groups):  # another optimizer
            return
        self._rates = [group["lr"] for group in groups]
        for group, by in zip(groups, each, strict=True):
            group["lr"] = min(group["lr"], by) if "most" in self._order else group["lr"] * by
        self._used.touch()

    def _clip(self, optimizer: Any) -> None:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        norm = math.sqrt(sum(float(g.detach().double().square().sum()) for g in grads))
        if not norm <= self._order["clip"]:
            for grad in grads:
                grad.mul_(self._order["clip"] / norm)
            self._used.touch()

    def _held(self, optimizer: Any) -> Iterator[torch.Tensor]:
        """Parameters and buffers; only those that this optimizer updates where no module is known."""
        name = self._order["hold_others"] if "hold_others" in self._order else self._order["hold"]
        module = self._module(name)
        inner = {} if module is None else {id(t): t for t in (*module.parameters(), *module.buffers())}
        ours = [p for group in optimizer.param_groups for p in group["params"]]
        if "hold_others" in self._order:
            yield from (p for p in ours if id(p) not in inner)
            return
        yield from (t for t in inner.values() if t.is_floating_point())
        if not name:
            yield from (p for p in ours if id(p) not in inner)
