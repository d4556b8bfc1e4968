"""Updates: with which learning rates, how large beside the weights, and whether they are rounded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Rates, Rows, Updated

if TYPE_CHECKING:
    from postmortem.silent.observe.recorder import Recorder

_ELEMENTS = 4096
"""So many of a parameter are compared."""
_ROWS = 64
"""Units that are alike are so everywhere."""


@watcher
class Updates(Watcher):
    """Rates, Updated, Rows."""

    order = 1

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._rates: dict[int, tuple[float, ...]] = {}
        self._before: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]] = {}

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        number, _ = self.recorder.optimizers.of(optimizer)
        given = [group.get("lr") for group in optimizer.param_groups]
        rates = tuple(float(rate) for rate in given if rate is not None)
        if len(rates) == len(given) and self._rates.get(number) != rates:
            self._rates[number] = rates
            self.recorder.add(Rates(number, self.recorder.steps, rates))
        if self.recorder.sampled:
            held = [p for group in optimizer.param_groups for p in group["params"] if plain(p)]
            self._rows(held)
            self._before[number] = [
                (p, some(p).clone(), some(p.grad) != 0 if p.grad is not None and plain(p.grad) else None) for p in held
            ]

    def _rows(self, held: list[torch.Tensor]) -> None:
        wide = [p for p in held if p.dim() > 1 and p.shape[0] > 1 and p[0].numel() > 1]
        numbers = [str(self.recorder.parameters.number(p)) for p in wide]
        rows = [p.detach().flatten(1)[:_ROWS, :_ELEMENTS].float() for p in wide]
        apart = {n: float((r - r[0]).abs().max()) for n, r in zip(numbers, rows, strict=True)}
        largest = {n: float(r.abs().max()) for n, r in zip(numbers, rows, strict=True)}
        self.recorder.add(Rows(self.recorder.steps, apart, largest))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        number, _ = self.recorder.optimizers.of(optimizer)
        weights, changes, kept = {}, {}, {}
        for parameter, before, graded in self._before.pop(number, ()):
            key, now = str(self.recorder.parameters.number(parameter)), some(parameter)
            if now.shape != before.shape or now.device != before.device:
                continue
            changed = now.double() - before.double()
            weights[key], changes[key] = float(before.double().norm()), float(changed.norm())
            if graded is not None and graded.any():
                kept[key] = float(((changed == 0) & graded).sum() / graded.sum())
        if weights:
            self.recorder.add(Updated(number, self.recorder.steps, weights, changes, kept))


def plain(tensor: torch.Tensor) -> bool:
    """Whether it holds numbers that can be compared."""
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return known and tensor.is_floating_point() and tensor.device.type != "meta" and tensor.numel() > 0


def some(tensor: torch.Tensor) -> torch.Tensor:
    """Elements of all parts of it."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]
