"""Modules that behave differently in training and evaluation mode, and which line sets the mode."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from postmortem.silent.facts import Dropped, EvalCalled, ModeMatters
from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_TOLD = 3


@watcher
class Modes(Watcher):
    """ModeMatters, EvalCalled, Dropped."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._made: weakref.WeakKeyDictionary[torch.nn.Module, Stack] = weakref.WeakKeyDictionary()
        self._told: set[int] = set()
        self._dropped: Counter[Any] = Counter()
        self._running: list[torch.nn.Module] = []
        self.wrap(_DropoutNd, "__init__", self._dropout_made, always=True)
        self.wrap(torch.nn.Module, "eval", self._evaluating, always=True)
        for name in _DROPOUTS:
            self.wrap(functional, name, self._dropout)

    def _dropout_made(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._made[args[0]] = stack()

    def _evaluating(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.recorder.add(EvalCalled(self.recorder.modules.of(args[0])[0], self.recorder.steps, place()))

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        self._running = running
        number = self.recorder.modules.of(module)[0]
        if number in self._told:
            return
        self._told.add(number)
        probability, statistics = _probability(module), isinstance(module, _BatchNorm) and module.track_running_stats
        if probability or statistics:
            root = self.recorder.modules.of(running[0])[0]
            made = self._made.get(module, ())
            self.recorder.add(ModeMatters(number, root, probability, made, bool(statistics) and _unused(module)))

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not self._running or isinstance(self._running[-1], _DropoutNd):
            return
        probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = bool(kwargs.get("training", args[2] if len(args) > 2 else True))
        root, at = self._running[0], place()
        way = at, training, root.training, self.recorder.grad
        self._dropped[way] += 1
        if probability and self._dropped[way] <= _TOLD:
            number = self.recorder.modules.of(root)[0]
            self.recorder.add(
                Dropped(
                    number, self.recorder.steps, float(probability), training, root.training, self.recorder.grad, at
                )
            )


def _unused(norm: torch.nn.Module) -> bool:
    """Whether the running statistics are as they were made: 0 and 1."""
    mean, variance = norm.running_mean, norm.running_var
    if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor):
        return False
    return not mean.any() and bool(torch.eq(variance, 1).all())


def _probability(module: torch.nn.Module) -> float:
    """With which a module sets values to zero in training."""
    if isinstance(module, _DropoutNd):
        return float(module.p)
    if isinstance(module, torch.nn.MultiheadAttention) or (
        isinstance(module, torch.nn.RNNBase) and module.num_layers > 1
    ):
        return float(module.dropout)
    return 0.0
