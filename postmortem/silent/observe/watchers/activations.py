"""Activations in the graph of a backward pass: units that are always 0, values at their bounds."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Activated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.silent.observe.recorder import Recorder

_NODES = 5_000
_NEAR = 4
"""So many nodes lie between an activation and the layer that feeds it, at most (a reshape, a normalisation)."""
_KINDS = {"ReluBackward0": "relu", "TanhBackward0": "tanh", "SigmoidBackward0": "sigmoid"}
_LAYERS = ("Addmm", "Mm", "Convolution", "Linear")
_BOUND = 0.01
_LOOKS = 3
"""In so many looks a dead unit is dead."""


@watcher
class Activations(Watcher):
    """Activated."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._dead: dict[tuple[int, ...], deque[torch.Tensor]] = {}
        self._off: dict[tuple[int, ...], bool] = {}

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        if not self.recorder.sampled:
            return
        for node, hidden in _activations([t.grad_fn for t in tensors if t.grad_fn is not None]):
            result = node._saved_result
            if type(result) is torch.Tensor and result.numel() and result.dim() > 1:
                self._told(_KINDS[node.name()], node, result, hidden)

    def _told(self, kind: str, node: Any, result: torch.Tensor, hidden: bool) -> None:
        layer = _layer_before(node)
        held = _leaves_of(layer) if layer is not None else []
        weight = next((p for p in held if p.dim() > 1), None)
        dim = 1 if layer is not None and "Conv" in layer.name() else result.dim() - 1
        if weight is None:
            return
        if kind == "relu":
            others = [d for d in range(result.dim()) if d != dim]
            dead = (result == 0).all(others) if others else torch.zeros(1)
            flat, still = float(dead.float().mean()), self._still(held, dead)
            if hidden:
                self._confirm(held, off=bool(dead.all()))
        else:
            bound = result.abs() if kind == "tanh" else (2 * result - 1).abs()
            flat = still = float((bound > 1 - _BOUND).float().mean())
        self.recorder.add(
            Activated(
                self.recorder.steps,
                kind,
                result.shape[dim],
                flat,
                still,
                tuple(self.recorder.parameters.number(p) for p in held),
                _rms(weight) * math.sqrt(weight[0].numel()),
                _inputs(layer),
                hidden,
            )
        )

    def _confirm(self, held: list[torch.Tensor], *, off: bool) -> None:
        """A whole layer that has become 0, perhaps for this batch only: the next step may be the last one looked at."""
        key = tuple(self.recorder.parameters.number(p) for p in held)
        if off and not self._off.get(key):
            self.recorder.look_again()
        self._off[key] = off

    def _still(self, held: list[torch.Tensor], dead: torch.Tensor) -> float:
        """Share of the units that are dead now and were in the looks before: others are active for other samples."""
        key = tuple(self.recorder.parameters.number(p) for p in held)
        looks = self._dead.setdefault(key, deque(maxlen=_LOOKS))
        if looks and looks[-1].shape != dead.shape:
            looks.clear()
        looks.append(dead.cpu())
        return float(torch.stack(list(looks)).all(0).float().mean())


def _activations(roots: list[Any]) -> Iterator[tuple[Any, bool]]:
    """The activations below these nodes, and whether a layer lies between them and the root."""
    seen, waiting = set(roots), [(root, False) for root in roots]
    while waiting and len(seen) < _NODES:
        node, hidden = waiting.pop(0)
        name = node.name()
        if name in _KINDS:
            yield node, hidden
        hidden = hidden or name.startswith(_LAYERS)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append((child, hidden))


def _layer_before(node: Any) -> Any:
    """The linear or convolution layer that feeds an activation."""
    for _ in range(_NEAR):
        node = next((child for child, _ in node.next_functions if child is not None), None)
        if node is None or node.name() in _KINDS:
            return None
        if node.name().startswith(_LAYERS):
            return node
    return None


def _leaves_of(layer: Any) -> list[torch.Tensor]:
    found = []
    for child, _ in layer.next_functions:
        below = child.next_functions[0][0] if child is not None and child.name() == "TBackward0" else child
        leaf = getattr(below, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
    return found


def _inputs(layer: Any) -> float | None:
    for name in ("_saved_mat1", "_saved_self", "_saved_input"):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, torch.Tensor):
            return _rms(tensor)
    return None


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.detach().float().square().mean().sqrt()) if tensor.numel() else 0.0
