"""Optimizers: what they hold, with which gradients they step, and whether those are cleared in between."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Accumulated, Cleared, Gradients, OptimizerMade, Stepped
from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.observe.recorder import Recorder


@watcher
class Optimizers(Watcher):
    """OptimizerMade, Cleared, Accumulated, Stepped, Gradients."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._cleared: dict[int, bool] = {}
        self._added: set[int] = set()
        self._before: dict[int, list[int]] = {}
        self._held: dict[int, int] = {}
        self._passes: dict[int, int] = {}

    def _number(self, optimizer: torch.optim.Optimizer) -> int:
        """Its number. It is told of again when a group was added to it."""
        number, _ = self.recorder.optimizers.of(optimizer)
        held = sum(len(group["params"]) for group in optimizer.param_groups)
        if self._held.get(number) != held:
            self._held[number] = held
            groups = tuple(self._group(group) for group in optimizer.param_groups)
            self.recorder.add(OptimizerMade(number, type(optimizer).__name__, groups, stack()))
        return number

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {k: v for k, v in group.items() if isinstance(v, (bool, int, float)) or k == "betas"}
        return {**options, "parameters": [self.recorder.parameters.number(p) for p in group["params"]]}

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self._number(optimizer)

    def clearing(self, owner: torch.optim.Optimizer | torch.nn.Module) -> None:
        if isinstance(owner, torch.optim.Optimizer):
            owners = [owner]
        else:
            mine = {id(p) for p in owner.parameters()}
            owners = [o for o in self.recorder.optimizers.alive() if any(id(p) in mine for p in _parameters(o))]
        numbers = tuple(self._number(o) for o in owners)
        empty = {n: _empty(_parameters(o)) for n, o in zip(numbers, owners, strict=True)}
        self._cleared.update(dict.fromkeys(numbers, True))
        self.recorder.add(Cleared(numbers, self.recorder.steps, not all(empty.values()), place()))

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Gradients may be cleared without zero_grad, or never be added to, as those of fp32 copies of the weights."""
        for optimizer in self.recorder.optimizers.alive():
            number = self._number(optimizer)
            if not self._cleared.get(number) and _empty(_parameters(optimizer)):
                self._cleared[number] = True
            self._before[number] = _versions(optimizer)

    def after_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        for optimizer in self.recorder.optimizers.alive():
            number = self._number(optimizer)
            if _versions(optimizer) != self._before.get(number):
                self._added.add(number)
            self._passes[number] = self._passes.get(number, 0) + 1
            if self._passes[number] > 1:
                self.recorder.add(Accumulated(number, self.recorder.steps, _whole(_norms(_gradients(optimizer)))))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        number, held = self._number(optimizer), _parameters(optimizer)
        norms = _norms(_gradients(optimizer))
        self.recorder.add(
            Stepped(
                number,
                self.recorder.steps,
                len(held),
                none=len(held) - len(norms),
                zero=sum(norm == 0 for norm in norms),
                norm=_whole(norms),
                cleared=self._cleared.get(number, True) or number not in self._added or not any(norms),
                at=place(),
            )
        )
        if self.recorder.sampled:
            left = iter(norms)
            by_number = {
                str(self.recorder.parameters.number(p)): next(left) if p.grad is not None else None for p in held
            }
            frozen = tuple(self.recorder.parameters.number(p) for p in held if not p.requires_grad)
            self.recorder.add(Gradients(number, self.recorder.steps, by_number, frozen))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        number = self._number(optimizer)
        self._cleared[number], self._passes[number] = False, 0
        self._added.discard(number)
        if self.recorder.sampled:
            self.recorder.parameters.changed(self.recorder.steps)

    def end(self) -> None:
        self.recorder.parameters.changed(self.recorder.steps)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    """A number for each gradient that changes where something is added to it."""
    return [gradient._version for gradient in _gradients(optimizer)]


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for p in _parameters(optimizer) if p.grad is not None]


def _whole(norms: list[float]) -> float:
    """The norm of all of which these are the norms."""
    return math.sqrt(sum(norm * norm for norm in norms))


def _norms(gradients: list[torch.Tensor]) -> list[float]:
    """The norm of each."""
    if any(g.layout != torch.strided for g in gradients):
        gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if not gradients:
        return []
    return torch.stack([n.float().cpu() for n in torch._foreach_norm(gradients)]).tolist()


def _empty(parameters: list[torch.Tensor]) -> bool:
    """Whether none of a few of them has a gradient other than zero."""
    few = parameters if len(parameters) < 4 else [parameters[0], parameters[len(parameters) // 2], parameters[-1]]
    return not any(_norms([p.grad])[0] for p in few if p.grad is not None)
