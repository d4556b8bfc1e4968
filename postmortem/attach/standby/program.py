"""The program as its copy sees it: its models, optimizers and scalers, and their names."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from postmortem.attach.measure.reductions import all_finite
from postmortem.replay.rerun.session import Update, mask_values
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.names import plain_name
from postmortem.replay.trace.tensors import exact_bits, nonfinite_names, storage_key
from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import FrameType

    from postmortem.replay.rerun.session import Outside
    from postmortem.replay.trace.places import Where

_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Program:
    """models: the outermost modules by name, those that the optimizers train first; a single one of these is called ''.
    trained: how many these are. parameters, buffers: by qualified name, every tensor once."""

    models: dict[str, torch.nn.Module]
    trained: int
    optimizers: list[torch.optim.Optimizer]
    scalers: list[Any]
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    _finite: set[str] = field(default_factory=set)

    @classmethod
    def found(cls, optimizers: Iterable[torch.optim.Optimizer], frame: FrameType | None) -> Program:
        """Searches the process. frame: of the program, whose variables name the models."""
        updated = list(optimizers)
        ours = {id(p) for o in updated for g in o.param_groups for p in g["params"]}
        objects = gc.get_objects()
        modules = [o for o in objects if issubclass(type(o), torch.nn.Module)]
        inner = {id(c) for m in modules for c in m._modules.values() if c is not None}
        outer = [_unwrapped(m) for m in modules if id(m) not in inner]
        holders = [m for m in outer if any(id(p) in ours for p in m.parameters())]
        others = [m for m in outer if not any(m is h for h in holders)]
        scalers = [o for o in objects if issubclass(type(o), torch.amp.GradScaler) and o.is_enabled()]
        models = {"": holders[0]} if len(holders) == 1 else {}
        for module in [*holders, *others]:
            if not any(module is known for known in models.values()):
                name = _variable(module, frame) or type(module).__name__
                models[next(n for n in _numbered(name) if n not in models)] = module
        made = cls(models, len(holders), updated, scalers)
        made._name()
        return made

    def _name(self) -> None:
        for key, model in self.models.items():
            for name, p in model.named_parameters():
                self.parameters.setdefault(plain_name(key, name), p)
        self.buffers = self._held_now()
        known = {id(p) for p in self.parameters.values()}
        for i, p in enumerate(p for o in self.optimizers for g in o.param_groups for p in g["params"]):
            if id(p) not in known:
                self.parameters[f"parameter {i}"] = p
        self._finite = set(self.buffers) - set(nonfinite_names(self._of_trained(self.buffers)))

    def _held_now(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for key, model in self.models.items():
            for name, b in model.named_buffers():
                found.setdefault(plain_name(key, name), b)
        return found

    def _of_trained(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = list(self.models)[: self.trained]
        return {n: t for n, t in tensors.items() if "" in names or n.startswith(tuple(f"{k}." for k in names))}

    def name_losses(self, frame: FrameType | None) -> None:
        """Modules without tensors that were named by their class, when no variable held them yet, are named anew."""
        for name, module in list(self.models.items())[self.trained :]:
            empty = not any(True for _ in (*module.parameters(), *module.buffers()))
            found = _variable(module, frame) if empty and name.startswith(type(module).__name__) else None
            if found is not None:
                del self.models[name]
                self.models[next(n for n in _numbered(found) if n not in self.models)] = module

    def module_names(self) -> dict[int, str]:
        """id of a module -> its qualified name."""
        return {
            id(m): plain_name(key, name)
            for key, model in reversed(self.models.items())
            for name, m in model.named_modules(remove_duplicate=False)
        }

    def roots(self) -> list[torch.nn.Module]:
        """The modules that are trained; all where none is known to be."""
        return list(self.models.values())[: self.trained or None]

    def changed(self) -> dict[str, torch.Tensor]:
        """What a tick may make non-finite: parameters, and buffers that were finite, also where others are in their
        place by now."""
        trained = self._of_trained(self.parameters)
        ours = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        found = {n: p for n, p in self.parameters.items() if n in trained or id(p) in ours}
        return found | {n: b for n, b in self._of_trained(self._held_now()).items() if n in self._finite}

    def broken(self) -> Literal["", "parameter", "buffer"]:
        """What is non-finite now: a parameter that an optimizer updates, or a buffer that was finite."""
        if not all_finite(p for o in self.optimizers for g in o.param_groups for p in g["params"]):
            return "parameter"
        held = self._of_trained(self._held_now())
        return "" if all_finite(b for n, b in held.items() if n in self._finite) else "buffer"

    def optimizer_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """(name of the parameter, tensor) of the optimizers' state."""
        names = {id(p): name for name, p in self.parameters.items()}
        return [
            (names.get(id(p), ""), t)
            for optimizer in self.optimizers
            for p, state in optimizer.state.items()
            for t in tensors_in(state)
        ]

    def known(self, batch: Any) -> dict[int, Outside]:
        """Storage key -> what it is, of everything that comes into a tick from outside."""
        found: dict[int, Outside] = {storage_key(t): ("batch", "") for t in tensors_in(batch)}
        found |= {storage_key(t): ("optimizer", name) for name, t in self.optimizer_tensors()}
        held = [*self.buffers.items(), *self.parameters.items()]
        return found | {storage_key(t): ("parameter", name) for name, t in held}

    def bad(self) -> set[Outside]:
        """What is non-finite now."""
        kept = [("parameter", n, t) for n, t in (self.parameters | self.buffers).items()]
        kept += [("optimizer", n, t) for n, t in self.optimizer_tensors()]
        return {(kind, name) for kind, name, t in kept if exact_bits(t)}

    def mask(self, wanted: Collection[Outside]) -> None:
        """Sets the non-finite values of these to zero."""
        held = [("parameter", n, t) for n, t in (self.parameters | self.buffers).items()]
        held += [("optimizer", n, t) for n, t in self.optimizer_tensors() if t.is_floating_point()]
        with torch.no_grad():
            for kind, name, t in held if wanted else ():
                if (kind, name) in wanted:
                    mask_values(t)

    def half(self) -> bool:
        """Whether a parameter is in half precision."""
        return any(p.dtype in _HALF for p in self.parameters.values())

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """The parameters that it updates, by name."""
        ours = {id(p) for g in optimizer.param_groups for p in g["params"]}
        return {name: p for name, p in self.parameters.items() if id(p) in ours}

    def update(self, optimizer: torch.optim.Optimizer, at: Where, names: list[str]) -> Update:
        """The one that made these parameters non-finite, with the settings that it had for the first of them."""
        bad = {id(p) for n, p in self.parameters.items() if n in names[:1]}
        group = next((g for g in optimizer.param_groups if bad & {id(p) for p in g["params"]}), {})
        settings = [f"{k}={group[k]}" for k in ("lr", "betas", "momentum", "eps") if k in group]
        return Update(f"{type(optimizer).__name__}({', '.join(settings)})", at)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """What DistributedDataParallel and DataParallel wrap."""
    wraps = isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))
    inner = getattr(module, "module", None)
    return inner if wraps and isinstance(inner, torch.nn.Module) else module


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}{i}" for i in range(2, 1_000_000))


def _variable(module: torch.nn.Module, frame: FrameType | None) -> str | None:
    """The variable of the program's frames, or the attribute of an object of these, that is this module."""
    while frame is not None:
        if owner_of(frame.f_code.co_filename) in ("user", "package", "driver"):
            for scope in (frame.f_locals, frame.f_globals):
                for name, value in scope.items():
                    if name != "self" and (value is module or getattr(value, "_orig_mod", None) is module):
                        return name
            held = getattr(frame.f_locals.get("self"), "__dict__", {})
            for name, value in held.items():
                if value is module:
                    return str(name)
        frame = frame.f_back
    return None
