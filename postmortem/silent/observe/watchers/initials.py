"""Where parameters got their initial values (torch.nn.init) and their dtype (a conversion)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.observe.places import stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Written

if TYPE_CHECKING:
    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder

_PARTS = ("uniform_", "normal_", "constant_", "ones_", "zeros_", "eye_", "orthogonal_", "sparse_", "dirac_")
_CONVERSIONS = ("to", "half", "bfloat16")


@watcher
class Initials(Watcher):
    """Written, of the parameters of optimizers."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._written: dict[tuple[int, int], tuple[str, Stack]] = {}
        self._told: set[int] = set()
        for name in [n for n in vars(torch.nn.init) if n.endswith(_PARTS) and not n.startswith("_")]:
            self.wrap(torch.nn.init, name, self._remember(name))
        for name in _CONVERSIONS:
            self.wrap(torch.nn.Module, name, self._converted)

    def _remember(self, name: str) -> Any:
        def told(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if isinstance(result, torch.Tensor) and not self.recorder.steps:
                self._written[_memory(result)] = (name, stack())

        return told

    def _converted(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.recorder.steps or not isinstance(result, torch.nn.Module):
            return
        at = stack()
        for parameter in result.parameters():
            if parameter.dtype in (torch.bfloat16, torch.float16):
                self._written[_memory(parameter)] = (str(parameter.dtype).removeprefix("torch."), at)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        number, _ = self.recorder.optimizers.of(optimizer)
        if number in self._told:
            return
        self._told.add(number)
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            written = self._written.get(_memory(parameter))
            if written is not None:
                self.recorder.add(Written(self.recorder.parameters.number(parameter), *written))


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Parameters are often initialised through their `data`."""
    return (tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else id(tensor), tensor.numel())
