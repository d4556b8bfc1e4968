"""The gain of each module, step by step: how much larger its output is than its input."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.culprit.calm import departed
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.names import plain_name
from postmortem.replay.trace.places import user_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.replay.culprit.calm import Left
    from postmortem.replay.step.runner import StepRunner


@dataclass(slots=True)
class Gains:
    """While it is entered, the gains of the modules are noted; `next_step` begins a new step.

    The gain is the root mean square of the output over that of the first input of floating point, which counts as 1
    where there is none (an embedding). places: module -> (file, line) of the user's code that calls it.
    """

    runner: StepRunner
    steps: list[int] = field(default_factory=list)
    gains: dict[str, dict[int, float]] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    def __enter__(self) -> Gains:
        for key, model in self.runner.models.items():
            for name, module in model.named_modules():
                self._handles.append(module.register_forward_hook(self._hook(plain_name(key, name)), with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def next_step(self, step: int) -> None:
        """The modules run in `step` from here on."""
        self.steps.append(step)

    def _hook(self, name: str) -> Any:
        def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            out = next(_floats(output), None)
            if out is None or not self.steps or not out.numel():
                return
            given = next(_floats((args, kwargs)), None)
            size = 1.0 if given is None or not given.numel() else _rms(given)
            self.gains.setdefault(name, {})[self.steps[-1]] = _rms(out) / size if size else math.nan
            if name not in self.places and (frame := user_frame(sys._getframe(1).f_back)) is not None:
                self.places[name] = frame.f_code.co_filename, frame.f_lineno

        return note

    def left(self, until: int) -> list[Left]:
        """The modules whose gain left its course up to `until` and stayed away, the first and furthest first."""
        return departed(self.gains, until)


def _floats(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in tensors_in(value) if t.is_floating_point())


def _rms(t: torch.Tensor) -> float:
    with torch.no_grad():
        return float(t.detach().double().square().mean().sqrt().item())


def own_tensors(runner: StepRunner, module: str) -> dict[str, torch.Tensor]:
    """The parameters and floating buffers of a module and its parts, by name."""
    found: dict[str, torch.Tensor] = dict(runner.named_parameters())
    for key, model in runner.models.items():
        found |= {plain_name(key, name): b for name, b in model.named_buffers() if b.is_floating_point()}
    return {name: t for name, t in found.items() if not module or name.startswith(module + ".")}


class Held:
    """Tensors that keep their present values: call it whenever they may have changed."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kept = [(t, t.detach().clone()) for t in tensors]

    def __call__(self, step: int) -> None:
        """Sets them back; `step` is that of the caller."""
        with torch.no_grad():
            for t, values in self._kept:
                t.copy_(values)
