"""What a step keeps outside its model and optimizer: its own generators, numbers in its closure, object or file, other
models.

A rerun restores all of that, so that it repeats the step. What drawing a batch changes is not restored, except
generators, as each batch is drawn only once.
"""

from __future__ import annotations

import functools
import random
import sys
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.step.rng import GENERATORS
from postmortem.replay.trace.user_code import installed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.replay.model import TrainStep

_GLOBAL: tuple[Any, ...] = (torch.default_generator, np.random.get_state.__self__, random.getstate.__self__)  # type: ignore[attr-defined]
"""The global generators, which `Rng` restores. The functions of numpy.random and random are methods of theirs."""
_ROOM = 2
"""Largest total size of other models, in sizes of the step's own models: a large frozen one is not copied."""


class Reach:
    """What functions hold: the contents of their closures, and the objects of the user's classes that are in these or
    whose methods the functions are."""

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
    """The user's Python modules of these names, and those that they import or take functions and classes from."""
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
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (torch.nn.Module, torch.optim.Optimizer, type))
        and not _installed(kind.__module__)
    )


def _hooks(owners: Iterable[Any]) -> list[Any]:
    """The hooks of modules, parameters and optimizers, which run within the step."""
    tables = [
        table for o in owners for name, table in vars(o).items() if name.endswith("_hooks") and "state_dict" not in name
    ]
    for p in [p for o in owners if isinstance(o, torch.nn.Module) for p in o._parameters.values() if p is not None]:
        tables += [p._backward_hooks, p._post_accumulate_grad_hooks]
    return [
        hook for table in tables if isinstance(table, dict) for hook in table.values()
    ]  # an attribute of the user may have such a name


class Outside:
    """What `train_step.step` and the hooks hold.

    generators: random generators. cells: cells of closures. objects: objects with attributes, among them the user's
    files with their global variables. modules: by name, those that are not in `models` (a teacher, stepped like a
    model). compiled: there are compiled functions among them. drawn: what drawing a batch changes of these, as (id of
    the object or cell, name of the attribute).
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
        drawn_from = [
            g for g in found if issubclass(type(g), GENERATORS) and not isinstance(g, random.SystemRandom)
        ]  # it has no state
        self.generators = list({id(g): g for g in drawn_from if not any(g is one for one in _GLOBAL)}.values())
        self.compiled = any(isinstance(v, FunctionType) and hasattr(v, "_torchdynamo_orig_callable") for v in found)
