"""Modules: which run, in which mode, to which model they belong, and whether their outputs can carry a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Forward, ModuleRan, ModuleSeen
from postmortem.silent.observe.places import code_of, place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.silent.observe.recorder import Recorder


@watcher
class Modules(Watcher):
    """ModuleSeen, ModuleRan, Forward."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._ways: set[tuple[int, bool, bool, bool]] = set()
        self._weights: dict[int, int] = {}
        self._told: set[int] = set()

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], running: list[torch.nn.Module]) -> None:
        number = self.recorder.modules.of(module)[0]
        if number not in self._told:
            self._told.add(number)
            self._seen(number, module, running)
        if len(running) == 1:
            if number not in self._weights:
                self._weights[number] = sum(1 for _ in module.parameters())
            steps, weights = self.recorder.steps, self._weights[number]
            self.recorder.add(Forward(number, steps, module.training, self.recorder.grad, weights, place()))

    def left(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any, running: list[torch.nn.Module]) -> None:
        number = self.recorder.modules.of(module)[0]
        way = (number, module.training, self.recorder.grad, _connected(output))
        if way not in self._ways:
            self._ways.add(way)
            self.recorder.add(ModuleRan(*way, stack()))

    def _seen(self, number: int, module: torch.nn.Module, running: list[torch.nn.Module]) -> None:
        root = running[0]
        names = {id(m): name for name, m in root.named_modules()}
        registered = id(module) in names
        holder, name = (None, names.get(id(module), "")) if registered else _holder(module, root, running)
        own = {n: self.recorder.parameters.number(p) for n, p in _own(module)}
        self.recorder.add(
            ModuleSeen(
                number,
                type(module).__name__,
                self.recorder.modules.of(root)[0],
                name,
                registered,
                own,
                type(holder).__name__ if holder is not None else "",
                self._hidden(module, root),
                code_of(type(module).forward),
            )
        )

    def _hidden(self, module: torch.nn.Module, root: torch.nn.Module) -> dict[str, list[int]]:
        """Attribute -> parameters in a list, tuple or dict of it that the root does not know."""
        known = {id(p) for p in root.parameters()}
        found: dict[str, list[int]] = {}
        for name, value in vars(module).items():
            values = list(value.values()) if isinstance(value, dict) else value
            if name.startswith("_") or not isinstance(values, (list, tuple)):
                continue
            own = [p for p in values if isinstance(p, torch.nn.Parameter) and id(p) not in known]
            if own:
                found[name] = [self.recorder.parameters.number(p) for p in own]
        return found


def _own(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Its parameters, with those in containers of it that never run (ParameterList, ParameterDict)."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None and type(child).forward is torch.nn.Module.forward:
            yield from _own(child, f"{prefix}{name}.")


def _connected(output: Any) -> bool:
    """Whether a tensor of it requires a gradient."""
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    if isinstance(output, dict):
        output = list(output.values())
    return any(_connected(each) for each in output) if isinstance(output, (list, tuple)) else False


def _holder(
    module: torch.nn.Module, root: torch.nn.Module, running: list[torch.nn.Module]
) -> tuple[torch.nn.Module | None, str]:
    """The module that has another one in an attribute that does not register it, and the name of that attribute."""
    for owner in (*reversed(running[:-1]), *root.modules()):
        for name, value in vars(owner).items():
            if not name.startswith("_") and _within(module, value, 2):
                return owner, name
    return None, ""


def _within(module: torch.nn.Module, value: Any, depth: int) -> bool:
    if value is module:
        return True
    if isinstance(value, torch.nn.Module):
        return depth > 0 and any(m is module for m in value.modules())
    if depth == 0:
        return False
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_within(module, each, depth - 1) for each in value)
    own = getattr(value, "__dict__", None)
    return isinstance(own, dict) and not isinstance(value, type) and any(_within(module, v, 0) for v in own.values())
