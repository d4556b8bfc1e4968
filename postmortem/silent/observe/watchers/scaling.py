"""What happens to gradients between backward pass and step: clipping, and the scale of a GradScaler."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Clipped, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.silent.observe.recorder import Recorder

_CHAIN = 6
_MOST = 8  # scaled losses of one step


@watcher
class ScalesAndClips(Watcher):
    """Clipped, Scaling."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._scaled: list[weakref.ref[torch.Tensor]] = []
        self._factor = self._pending = 1.0
        for owner in (torch.nn.utils, clip_grad):
            self.wrap(owner, "clip_grad_norm_", self._norm_clipped)
            self.wrap(owner, "clip_grad_value_", self._value_clipped)
        kind = torch.amp.grad_scaler.GradScaler
        self.wrap(kind, "scale", self._scale)
        self.wrap(kind, "unscale_", self._unscale)
        self.wrap(kind, "step", self._step)

    def _norm_clipped(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        limit = float(kwargs.get("max_norm", args[1] if len(args) > 1 else 0.0))
        self._clipped("norm", limit, float(result))

    def _value_clipped(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Their parameters may have been an iterator, which is used up now."""
        limit = float(kwargs.get("clip_value", args[1] if len(args) > 1 else 0.0))
        held = [p for o in self.recorder.optimizers.alive() for group in o.param_groups for p in group["params"]]
        gradients = [p.grad for p in held if p.grad is not None and p.grad.layout == torch.strided]
        elements = sum(g.numel() for g in gradients)
        at_limit = sum(int((g.abs() >= limit * (1 - 1e-6)).sum()) for g in gradients)
        if elements:
            self._clipped("value", limit, limit * at_limit / elements)

    def _clipped(self, by: str, limit: float, norm: float) -> None:
        self.recorder.add(Clipped(self.recorder.steps, by, limit, norm, self._pending, place()))

    def _scale(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not args[0].is_enabled():
            return
        self._factor = args[0].get_scale()
        self._scaled = [*self._scaled[-_MOST:], *(weakref.ref(t) for t in _tensors(result))]
        self.recorder.add(Scaling("scale", self.recorder.steps, self._factor, None, place()))

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        scaled = [t for found in self._scaled if (t := found()) is not None]
        if any(_begins_at(tensor, each) for tensor in tensors for each in scaled):
            self._pending = self._factor
            self.recorder.add(Scaling("backward", self.recorder.steps, self._factor, None, place()))

    def _unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._pending = 1.0
        self._used("unscale", args)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._used("step", args)

    def _used(self, action: str, args: tuple[Any, ...]) -> None:
        if args[0].is_enabled() and len(args) > 1:
            number, _ = self.recorder.optimizers.of(args[1])
            self.recorder.add(Scaling(action, self.recorder.steps, args[0].get_scale(), number, place()))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._pending = 1.0
        self._scaled = [found for found in self._scaled if found() is not None]


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _begins_at(tensor: torch.Tensor, scaled: torch.Tensor) -> bool:
    """Whether the graph of a tensor leads through a scaled one, near its root."""
    if tensor is scaled:
        return True
    nodes = [tensor.grad_fn]
    for node in nodes:
        if node is scaled.grad_fn:
            return node is not None
        nodes += [child for child, _ in node.next_functions if len(nodes) < _CHAIN] if node is not None else []
    return False
