"""What a step keeps outside its model and optimizer: generators of its own, numbers in its closure, its object or its file, other models.

A rerun that found them changed would not be a rerun. What drawing a batch changes is left alone, but for the generators:
`batches` is asked for each batch once.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.recipe.check import installed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.replay.model import TrainStep

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL: tuple[Any, ...] = (torch.default_generator, np.random.mtrand._rand, random._inst)
_ROOM = 2
"""Times the size of the step's own models that the others may have: a large frozen one is not copied."""


class Reach:
    """What functions hold: the contents of their closures, and the objects of the user's own classes that they are methods
    of or have in their closure."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self.cells: dict[int, CellType] = {}
        self.objects: dict[int, Any] = {}
        self.globals: dict[int, dict[str, Any]] = {}
        self.modules: dict[int, tuple[str, torch.nn.Module]] = {}
        for function in functions:
            self._follow(function)

    def _follow(self, value: Any, depth: int = 3, name: str = "") -> None:
        if isinstance(value, torch.nn.Module):
            self.modules.setdefault(id(value), (name, value))
        elif isinstance(value, functools.partial):
            for held in (value.func, *value.args, *value.keywords.values()):
                self._follow(held, depth)
        elif isinstance(value, MethodType):
            self._follow(value.__self__, depth)
            self._follow(value.__func__, depth)
        elif isinstance(value, FunctionType):
            if depth:
                self.globals[id(value.__globals__)] = value.__globals__
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    if id(cell) not in self.cells and _filled(cell):
                        self.cells[id(cell)] = cell
                        self._follow(cell.cell_contents, depth - 1, name)
        elif _of_the_users(value) and id(value) not in self.objects:
            self.objects[id(value)] = value
            for name, held in list(vars(value).items()):
                if isinstance(held, torch.nn.Module):
                    self._follow(held, depth, name)


def _installed(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and name != "__main__" and installed(name, module)


def _files_of_the_user(names: Iterable[str]) -> list[ModuleType]:
    """The user's modules of these names, and those that they import or take functions and classes from."""
    found: dict[str, ModuleType] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        if name not in found and module is not None and not _installed(name):
            found[name] = module
            held = [v for v in list(vars(module).values()) if isinstance(v, (ModuleType, FunctionType, type))]
            todo += [v.__name__ if isinstance(v, ModuleType) else v.__module__ for v in held]
    return list(found.values())


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _of_the_users(value: Any) -> bool:
    kind = type(value)
    return hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, torch.optim.Optimizer, type)) and not _installed(kind.__module__)


def _hooks(owners: Iterable[Any]) -> list[Any]:
    """What the hooks of modules, parameters and optimizers call: they run within the step."""
    tables = [table for o in owners for name, table in vars(o).items() if name.endswith("_hooks") and "state_dict" not in name]
    for p in [p for o in owners if isinstance(o, torch.nn.Module) for p in o._parameters.values() if p is not None]:
        tables += [p._backward_hooks, p._post_accumulate_grad_hooks]
    return [hook for table in tables if isinstance(table, dict) for hook in table.values()]  # the user's own attributes may be named so


class Outside:
    """What `train_step.step` and the hooks hold: `generators`, `cells` of closures, `objects` with attributes (among them the user's
    files, with what is global in them), and `modules` by name that are not in `models` (a teacher is stepped like a model). `compiled`: there are
    compiled functions among them.

    What of them drawing a batch changes goes into `drawn`: (id of the object or cell, name of the attribute).
    """

    def __init__(self, train_step: TrainStep, models: Iterable[torch.nn.Module], optimizers: Iterable[Any]) -> None:
        known = [m for model in models for m in model.modules()]
        owners = [*known, *optimizers]
        steps = train_step.step.values() if isinstance(train_step.step, dict) else [train_step.step]
        reach = Reach([*steps, *_hooks(owners)])
        self.cells, self.objects = list(reach.cells.values()), list(reach.objects.values())
        self.drawn: set[tuple[int, str]] = set()
        own = {id(m) for m in known}
        others = {name: m for key, (name, m) in reach.modules.items() if key not in own}
        room = _ROOM * sum(p.numel() for m in models for p in m.parameters())
        self.modules = others if sum(p.numel() for m in others.values() for p in m.parameters()) <= room else {}
        names = [type(o).__module__ for o in owners] + [g.get("__name__", "") for g in reach.globals.values()]
        self.objects += _files_of_the_user(names)
        held = [*(vars(o) for o in [*owners, *self.objects]), *reach.globals.values()]
        found = [v for names in held for v in list(names.values())] + [c.cell_contents for c in reach.cells.values()]
        drawn_from = [g for g in found if issubclass(type(g), _GENERATORS) and not isinstance(g, random.SystemRandom)]  # that one has no state
        self.generators = list({id(g): g for g in drawn_from if not any(g is one for one in _GLOBAL)}.values())
        self.compiled = any(isinstance(v, FunctionType) and hasattr(v, "_torchdynamo_orig_callable") for v in found)


def state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = copy.deepcopy(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def same_state(a: Any, b: Any) -> bool:
    """Whether nothing was drawn between two states of one generator."""
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else repr(a) == repr(b)
