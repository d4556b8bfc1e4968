"""Targets of losses that are defined for some values only, such as probabilities."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import TargetsGiven

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_RANGES = {
    "binary_cross_entropy": (0.0, 1.0),
    "binary_cross_entropy_with_logits": (0.0, 1.0),
    "multilabel_soft_margin_loss": (0.0, 1.0),
    "poisson_nll_loss": (0.0, math.inf),
}
_SIGNS = ("soft_margin_loss", "hinge_embedding_loss", "cosine_embedding_loss", "margin_ranking_loss")
"""Their targets are 1 and -1."""
_BEYOND = 0.5
"""So far from what the loss is defined for: rounding errors and labels with noise are nearer, other classes are not."""
_ELEMENTS = 1 << 20
_CALLS = 4
"""So many calls of one line are told per step."""


@watcher
class Targets(Watcher):
    """TargetsGiven."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._told: Counter[tuple[int, Place | None]] = Counter()
        for name in (*_RANGES, *_SIGNS):
            self.wrap(functional, name, self._of(name))

    def _of(self, name: str) -> Callable[..., None]:
        names = ["input", "target", "weight" if name in _RANGES and name != "poisson_nll_loss" else ""]
        if name in ("cosine_embedding_loss", "margin_ranking_loss"):
            names = ["input1", "input2", "target"]

        def told(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            given = dict(zip(names, args, strict=False)) | kwargs
            target = given.get("target")
            if not self.recorder.sampled or not isinstance(result, torch.Tensor) or not result.requires_grad:
                return
            if not isinstance(target, torch.Tensor) or type(target) not in (torch.Tensor, torch.nn.Parameter):
                return
            if 0 < target.numel() <= _ELEMENTS:
                self._given(name, target.detach(), given.get("weight"), result)

        return told

    def _given(self, name: str, target: torch.Tensor, weight: Any, result: Any) -> None:
        at, step = place(), self.recorder.steps
        self._told[step, at] += 1
        lowest, highest = float(target.min()), float(target.max())
        if self._told[step, at] > _CALLS or not math.isfinite(lowest + highest):
            return
        outside = _outside(name, target)
        if isinstance(weight, torch.Tensor):
            outside = outside & (weight.detach() != 0)
        if not bool(outside.any()):
            self.recorder.add(TargetsGiven(name, step, lowest, highest, 0.0, at))
            return

        def weigh(gradient: torch.Tensor) -> None:
            """What is masked after the loss gets no gradient, and a loss that is only printed has none."""
            self.guard(counted, gradient)

        def counted(gradient: torch.Tensor) -> None:
            counts = outside & (gradient != 0) if gradient.dim() == 0 or gradient.shape == outside.shape else outside
            share = float(counts.double().mean())
            self.recorder.add(TargetsGiven(name, step, lowest, highest, share, at))

        result.register_hook(weigh)


def _outside(name: str, target: torch.Tensor) -> torch.Tensor:
    if name in _SIGNS:
        return (target.abs() - 1).abs() > _BEYOND
    low, high = _RANGES[name]
    return (target < low - _BEYOND) | (target > high + _BEYOND)
