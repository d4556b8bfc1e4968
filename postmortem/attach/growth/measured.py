"""In the process of the program: of each optimizer step its learning rates, its gradient norm, and the gain of each
module."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from postmortem.attach.boundaries.current import listener
from postmortem.attach.growth.changes import Change
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.names import plain_name
from postmortem.replay.trace.places import user_frame

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "growth"


def begin(session: Path, plan: dict[str, Any]) -> None:
    """Measures this process, with the change of the plan, if it has one; without one the gains are measured as well.

    used: name of the file of the session that is written once the change has had an effect.
    """
    change = plan.get("change")
    measured = _Measured(session / FOLDER, gains=change is None)
    measured.install()
    if change is not None:
        Change(change, measured.module, session / plan.get("used", "used")).install()


class _Measured:
    def __init__(self, folder: Path, *, gains: bool) -> None:
        self._folder, self._process, self._measures = folder, os.getpid(), gains
        self._names: dict[int, tuple[str, torch.nn.Module]] = {}
        self._depth = 0
        self._clipped: float | None = None
        self._gains: dict[str, float] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._told: set[str] = set()
        self._grouped: set[int] = set()

    def install(self) -> None:
        """From now on, in this process only."""
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._left, with_kwargs=True, always_call=True)
        optimizers.register_optimizer_step_pre_hook(self._step)
        clip = torch.nn.utils.clip_grad_norm_

        @functools.wraps(clip)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            self._clipped = float(norm)
            return norm

        torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_

    def module(self, name: str) -> torch.nn.Module | None:
        """The module of this name."""
        return next((module for known, module in self._names.values() if known == name), None)

    def all(self) -> list[torch.nn.Module]:
        """All that have run."""
        return [module for _, module in self._names.values()]

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if self._depth == 0 and id(module) not in self._names:
            several = any(not name for name, _ in self._names.values())
            prefix = type(module).__name__ if several else ""
            for name, inner in module.named_modules():
                self._names.setdefault(id(inner), (plain_name(prefix, name), inner))
        self._depth += 1

    def _left(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._depth -= 1
        name = self._names.get(id(module), ("", None))[0]
        if not self._measures or not name or not torch.is_grad_enabled() or os.getpid() != self._process:
            return
        out = next((t for t in tensors_in(output) if t.is_floating_point()), None)
        if out is None or not out.numel():
            return
        given = next((t for t in tensors_in((args, kwargs)) if t.is_floating_point() and t.numel()), None)
        size = 1.0 if given is None else _rms(given)
        self._gains[name] = _rms(out) / size if size else math.nan
        if name not in self._places and (frame := user_frame(sys._getframe(1))) is not None:
            self._places[name] = frame.f_code.co_filename, frame.f_lineno

    def _groups(self, optimizer: Any) -> list[list[str]]:
        """The names of the parameters of each group, told once."""
        if id(optimizer) in self._grouped:
            return []
        self._grouped.add(id(optimizer))
        names = {
            id(p): f"{name}.{of}"
            for name, module in self._names.values()
            for of, p in module.named_parameters(recurse=False)
        }
        return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self._process:
            return
        groups = optimizer.param_groups
        grads = [p.grad.detach() for g in groups for p in g["params"] if p.grad is not None]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        new = {name: place for name, place in self._places.items() if name not in self._told}
        self._told |= set(new)
        row = {
            "tick": listener.ticks,
            "rates": [float(g["lr"]) for g in groups if "lr" in g],
            "norm": norm,
            "unclipped": norm if self._clipped is None else self._clipped,
            "gains": self._gains,
            "places": new,
            "groups": self._groups(optimizer),
        }
        self._clipped, self._gains = None, {}
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"{self._process}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def _rms(t: torch.Tensor) -> float:
    with torch.no_grad():
        return float(t.detach().double().square().mean().sqrt())
