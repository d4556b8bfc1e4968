"""Norms per layer: of the gradients that an update uses, and of what it changes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from postmortem.attach import boundaries
from postmortem.attach.measure.reductions import norms, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAYERS = 128  # columns of one kind, at most: deeper names are cut until there are no more
_COPIED = 256 << 20  # bytes of parameters that are kept for one update, at most


@dataclass(slots=True)
class Sample:
    """One update. gradients: norms on their devices, in the order of `of_gradients`; updates likewise."""

    gradients: list[torch.Tensor] = field(default_factory=list)
    updates: list[torch.Tensor] = field(default_factory=list)
    of_gradients: list[torch.Tensor] = field(default_factory=list)
    of_updates: list[torch.Tensor] = field(default_factory=list)
    whole: bool = True

    def columns(self, values: Sequence[float], names: LayerNames, suffix: str) -> dict[str, float]:
        """The norms as columns, once their values are here, gradients first."""
        n = len(self.of_gradients)
        found = {}
        kinds = (
            ("grad_norm", self.of_gradients, values[:n], True),
            ("update_norm", self.of_updates, values[n:], self.whole),
        )
        for kind, tensors, of_kind, whole in kinds:
            layers: dict[str, float] = defaultdict(float)
            for tensor, value in zip(tensors, of_kind, strict=True):
                layers[names.of(tensor)] += value * value
            if tensors and whole:
                found[kind + suffix] = math.sqrt(math.fsum(layers.values()))
            found.update({f"{kind}/{layer}": math.sqrt(square) for layer, square in layers.items()})
        return found


class LayerNames:
    """The layer of a parameter: the module that holds it, by its name in the model."""

    def __init__(self) -> None:
        self._layers: dict[int, str] = {}

    def of(self, parameter: torch.Tensor) -> str:
        """Looked up in the whole process, the first time that a parameter is met."""
        if id(parameter) not in self._layers:
            self.look_up()
            self._layers.setdefault(id(parameter), "other")
        return self._layers[id(parameter)]

    def look_up(self) -> None:
        """Of all parameters of optimizers seen so far."""
        self._layers = self._found()

    @staticmethod
    def _found() -> dict[int, str]:
        parts = {id(p): name.split(".") for name, p in boundaries.parameters().items()}
        modules = {i: (path[:-1] or path) for i, path in parts.items()}
        depth = max(map(len, modules.values()), default=1)
        while depth > 1 and len({tuple(path[:depth]) for path in modules.values()}) > _LAYERS:
            depth -= 1
        return {
            i: ".".join(path[:depth] if path[0] != "" and not path[0].isdigit() else ["layer", *path[:depth]])
            for i, path in modules.items()
        }


class Norms:
    """Takes the norms of one update: `before` it, and `after`.

    An update is the difference of the parameters. Of a large model only some parameters are copied for that, others at
    the next time.
    """

    def __init__(self) -> None:
        self._next = 0
        self._sample: Sample | None = None
        self._copies: list[torch.Tensor] = []

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are final."""
        updated = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        updated = [p for p in updated if plain([p.grad])]
        if not updated:
            return
        sample = Sample(of_gradients=updated)
        sample.gradients = norms([plain([p.grad])[0] for p in updated])
        sample.of_updates = self._turn(updated)
        sample.whole = len(sample.of_updates) == len(updated)
        with torch.no_grad():
            self._copies = [plain([p])[0].clone() for p in sample.of_updates]
        self._sample = sample

    def after(self) -> Sample | None:
        """The parameters have changed; None if `before` saw no gradient."""
        sample, self._sample = self._sample, None
        if sample is None:
            return None
        with torch.no_grad():
            torch._foreach_sub_(self._copies, [plain([p])[0] for p in sample.of_updates])
            sample.updates = norms(self._copies)
        self._copies = []
        return sample

    def _turn(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """The parameters whose turn it is to be copied."""
        start = self._next % len(parameters)
        size = 0
        taken: list[torch.Tensor] = []
        for p in parameters[start:] + parameters[:start]:
            size += p.numel() * p.element_size()
            if taken and size > _COPIED:
                break
            taken.append(p)
        self._next = start + len(taken) if len(taken) < len(parameters) else 0
        return taken
