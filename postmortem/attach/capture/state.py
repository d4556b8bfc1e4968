"""The state of a program between two steps, as values that a capture stores, and how it is restored.

Everything is found by name: parameters and buffers by that of their module, an optimizer by the parameters it updates,
a generator by the variable that holds it.
"""

from __future__ import annotations

import gc
import random
import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from postmortem.attach.capture.values import NotStored
from postmortem.replay.step.batches import tensor_map
from postmortem.replay.step.rng import GENERATORS, Rng, set_state, state_of
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType


class Program(Protocol):
    """What is known of the program, see `standby.program`."""

    models: dict[str, torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[Any]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def module_names(self) -> dict[int, str]:
        """id of a module -> its qualified name."""


def held(program: Program) -> dict[str, Any]:
    """The whole state; tensors are the program's own."""
    return {
        "parameters": dict(program.parameters),
        "buffers": dict(program.buffers),
        "numbers": _numbers(program),
        "optimizers": [_of_optimizer(o, program) for o in program.optimizers],
        "schedulers": [{"class": _kind(s), "state": s.state_dict()} for s in schedulers(program.optimizers)],
        "scalers": [s.state_dict() for s in program.scalers],
        "rng": randomness(),
    }


def _kind(value: Any) -> str:
    return type(value).__qualname__


def _names(program: Program) -> dict[int, str]:
    return {id(p): name for name, p in program.parameters.items()}


def _of_optimizer(optimizer: torch.optim.Optimizer, program: Program) -> dict[str, Any]:
    names = _names(program)
    return {
        "class": _kind(optimizer),
        "parameters": _updated(optimizer, names),
        "settings": settings(optimizer),
        "state": {names[id(p)]: dict(state) for p, state in optimizer.state.items() if id(p) in names},
    }


def _updated(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Learning rate and the like, by parameter group."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def set_settings(optimizer: torch.optim.Optimizer, values: Iterable[Mapping[str, Any]]) -> None:
    """Sets what `settings` returned."""
    for group, kept in zip(optimizer.param_groups, values, strict=False):
        group.update({k: v for k, v in kept.items() if not isinstance(v, NotStored)})


def _numbers(program: Program) -> dict[str, dict[str, float]]:
    """Numbers that modules keep as attributes: counters, averages."""
    found: dict[str, dict[str, float]] = {}
    for module, name in _modules(program):
        own = {k: v for k, v in vars(module).items() if type(v) in (int, float)}
        if own:
            found.setdefault(name, own)
    return found


def _modules(program: Program) -> Iterator[tuple[torch.nn.Module, str]]:
    names = program.module_names()
    for model in program.models.values():
        yield from ((m, names[id(m)]) for m in model.modules() if id(m) in names)


def schedulers(optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    """The learning rate schedulers of these optimizers, in the order in which they were made."""
    ours = {id(o) for o in optimizers}
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    found = [o for o in gc.get_objects() if issubclass(type(o), kinds)]
    return [s for s in found if id(getattr(s, "optimizer", None)) in ours]


# ---- random numbers


def randomness() -> dict[str, Any]:
    """The states of all generators that are found: the global ones, and those in variables of the program."""
    now = Rng.capture()
    own = {name: state_of(g) for name, g in _generators(sys._getframe(1)).items()}
    return {"torch": now.cpu, "cuda": now.cuda, "numpy": now.numpy, "python": now.python, "own": own}


def set_randomness(kept: Mapping[str, Any]) -> list[str]:
    """Sets them -> those of the program that are not there."""
    python = kept["python"]
    Rng(kept["torch"], kept["cuda"], kept["numpy"], python).restore()
    there = _generators(sys._getframe(1))
    for name, state in kept["own"].items():
        if name in there:
            set_state(there[name], state)
    return [f"generator {name}" for name in kept["own"] if name not in there]


def _generators(frame: FrameType | None) -> dict[str, Any]:
    """Variables of the program's frames, and attributes of the objects in them, that hold a generator."""
    found: dict[str, Any] = {}
    shared = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
    while frame is not None:
        if owner_of(frame.f_code.co_filename) in ("user", "package", "driver"):
            at = frame.f_code.co_name
            for scope in (frame.f_locals, frame.f_globals):
                for name, value in list(scope.items()):
                    if isinstance(value, GENERATORS):
                        found.setdefault(f"{at}.{name}", value)
                    elif not name.startswith("__") and owner_of_class(value) == "user":
                        for inner, held_ in list(vars(value).items()):
                            if isinstance(held_, GENERATORS):
                                found.setdefault(f"{at}.{name}.{inner}", held_)
        frame = frame.f_back
    taken: set[int] = set(shared)
    return {n: g for n, g in found.items() if id(g) not in taken and not taken.add(id(g))}  # type: ignore[func-returns-value]


def owner_of_class(value: Any) -> str:
    """Whose class an object has; empty where it has no attributes of its own."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return ""
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return owner_of(file) if file else ""


# ---- back into a program


def restore(kept: Mapping[str, Any], program: Program) -> tuple[list[str], list[str]]:
    """Puts a state into a program -> (what did not fit, what the capture lacks), in words. Not the generators."""
    unfit: list[str] = []
    lacks: list[str] = []
    for what, there in (("parameters", program.parameters), ("buffers", program.buffers)):
        unfit += _copied(kept[what], there)
        lacks += [f"{what[:-1]} {name}" for name in there if name not in kept[what]]
    for module, name in _modules(program):
        for attribute, number in kept["numbers"].get(name, {}).items():
            if type(vars(module).get(attribute)) is type(number):
                vars(module)[attribute] = number
    unfit += _optimizers(kept["optimizers"], program)
    unfit += _schedulers(kept["schedulers"], schedulers(program.optimizers))
    for scaler, state in zip(program.scalers, kept["scalers"], strict=False):
        scaler.load_state_dict(state)
    if len(program.scalers) != len(kept["scalers"]):
        unfit.append(f"{len(kept['scalers'])} loss scalers (the program has {len(program.scalers)})")
    return unfit, lacks


def _copied(kept: Mapping[str, Any], there: Mapping[str, torch.Tensor]) -> list[str]:
    unfit = []
    with torch.no_grad():
        for name, value in kept.items():
            t = there.get(name)
            if t is None:
                unfit.append(f"{name} (the program has none of this name)")
            elif not isinstance(value, torch.Tensor):
                unfit.append(f"{name} (the capture does not hold it)")
            elif t.shape != value.shape or t.dtype != value.dtype:
                shapes = f"{tuple(value.shape)} {value.dtype}, in the program {tuple(t.shape)} {t.dtype}"
                unfit.append(f"{name} ({shapes})")
            else:
                t.data.copy_(value)
    return unfit


def _optimizers(kept: Iterable[Mapping[str, Any]], program: Program) -> list[str]:
    names = _names(program)
    left = list(program.optimizers)
    unfit = []
    for told in kept:
        fits = [o for o in left if _kind(o) == told["class"] and _updated(o, names) == told["parameters"]]
        if not fits:
            unfit.append(f"the optimizer {told['class']} of {sum(map(len, told['parameters']))} parameters")
            continue
        left.remove(fits[0])
        set_settings(fits[0], told["settings"])
        before = dict(fits[0].state)
        fits[0].state.clear()
        for name, state in told["state"].items():
            p = program.parameters[name]
            fits[0].state[p] = {k: _beside(v, p, before.get(p, {}).get(k)) for k, v in state.items()}
    return unfit


def _beside(value: Any, p: torch.Tensor, before: Any) -> Any:
    """On the device of the value before, else of the parameter; a step counter is a number on the CPU."""

    def moved(t: torch.Tensor) -> torch.Tensor:
        if isinstance(before, torch.Tensor):
            return t.to(before.device)
        return t.to(p.device) if t.dim() else t

    return tensor_map(moved, value)


def _schedulers(kept: list[dict[str, Any]], there: list[Any]) -> list[str]:
    if [_kind(s) for s in there] != [told["class"] for told in kept]:
        return [f"the scheduler {told['class']}" for told in kept]
    for scheduler, told in zip(there, kept, strict=True):
        scheduler.load_state_dict({k: v for k, v in told["state"].items() if not _partly(v)})
    return []


def _partly(value: Any) -> bool:
    """Whether something in it was not stored."""
    if isinstance(value, (list, tuple)):
        return any(map(_partly, value))
    return isinstance(value, NotStored)
