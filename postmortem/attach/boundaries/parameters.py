"""The parameters that the program's optimizers update, and what they are called."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.roots import roots

if TYPE_CHECKING:
    from collections.abc import Iterator


def groups() -> Iterator[tuple[torch.optim.Optimizer, int, dict[str, Any]]]:
    """(optimizer, index, group) of all parameter groups, those of optimizers that stepped first."""
    for optimizer in sorted(listener.optimizers | listener.stepped, key=lambda o: o not in listener.stepped):
        for index, group in enumerate(getattr(optimizer, "param_groups", ())):
            yield optimizer, index, group


def parameters() -> dict[str, torch.Tensor]:
    """Name -> parameter of all optimizers seen so far. Slow: it searches the process for the modules."""
    wanted = {id(p): p for _, _, group in groups() for p in group["params"]}
    found: dict[str, torch.Tensor] = {}
    for name, module in _owners(wanted).items():
        for inner, p in module.named_parameters():
            if id(p) in wanted:
                plain = ".".join(part for part in (*name.split("."), *inner.split(".")) if part not in _WRAPPING)
                found.setdefault(plain, wanted.pop(id(p)))
    for i, p in enumerate(wanted.values()):
        found[f"parameter {i}"] = p
    return found


def trained() -> list[torch.nn.Module]:
    """The outermost modules that hold parameters of the optimizers seen so far. Slow, as `parameters`."""
    return list(_owners({id(p): p for _, _, group in groups() for p in group["params"]}).values())


_WRAPPING = ("", "module", "_orig_mod")
"""Parts of names that DistributedDataParallel and torch.compile add."""


def _owners(wanted: dict[int, torch.Tensor]) -> dict[str, torch.nn.Module]:
    """Name -> outermost module that holds some of these parameters; a single one has the name ''."""
    known = roots()
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(c) for m in modules for c in m._modules.values() if c is not None}
    holders = [m for m in modules if id(m) not in inner and any(id(p) in wanted for p in m.parameters())]
    if len(holders) == 1:
        return {"": holders[0]}
    names = {id(m): name for name, m in known.items()}
    return {names.get(id(m), type(m).__name__): m for m in holders}
