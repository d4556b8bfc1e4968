"""Backward passes: where they start, their first operators, and which leaves they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Backward
from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.observe.recorder import Recorder

_NODES = 20_000
_CHAIN = 6
_SCALES = ("DivBackward0", "MulBackward0")
_SUM = 2  # as autograd saves the reduction of a loss


@watcher
class Backwards(Watcher):
    """Backward."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._walked: dict[Any, int] = {}

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        roots = [t.grad_fn for t in tensors if t.grad_fn is not None]
        at = place()
        first = self._walked.get(at, 0) < 8
        reached = None
        if first or self.recorder.sampled:
            self._walked[at] = self._walked.get(at, 0) + 1
            reached = tuple(self.recorder.parameters.number(leaf) for leaf in _leaves(roots))
        loss = float(tensors[0].detach()) if len(tensors) == 1 and tensors[0].numel() == 1 else None
        root = _undivided(roots[0]) if roots else None
        divided = _divided(root) if root is not None else 1.0
        self.recorder.add(Backward(self.recorder.steps, loss, _chain(root), reached, at, divided))

    def derived(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """What gets a gradient by torch.autograd.grad is trained by the program's own means."""
        reached = tuple(self.recorder.parameters.number(p) for p in inputs if isinstance(p, torch.nn.Parameter))
        if reached:
            self.recorder.add(Backward(self.recorder.steps, None, (), reached, place()))


def _undivided(node: Any) -> Any:
    """The first node that is no division by 1: libraries divide by how many losses are accumulated."""
    while node.name() in _SCALES and _divisor(node) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


def _divided(node: Any) -> float:
    """See `Backward`. A sum over samples that is divided is a mean as well."""
    below = node.next_functions[0][0] if node.name() == "DivBackward0" else None
    if below is None:
        return 1.0
    return 1.0 if getattr(below, "_saved_reduction", None) == _SUM else _divisor(node)


def _divisor(node: Any) -> float:
    other = getattr(node, "_saved_other", None)
    return float(other) if isinstance(other, torch.Tensor) and other.numel() == 1 and not other.is_complex() else 0.0


def _chain(node: Any) -> tuple[str, ...]:
    names: list[str] = []
    while node is not None and len(names) < _CHAIN:
        names.append(node.name())
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return tuple(names)


def _leaves(roots: list[Any]) -> list[torch.Tensor]:
    """The leaves of the graph below these nodes, unless it is too large to be walked."""
    seen, waiting, found = set(roots), list(roots), []
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found
