"""What the layers of a model do at some weights: dead units, saturated activations, outputs that do not vary."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.function_mode import StepMode
from postmortem.replay.step.names import plain_name
from postmortem.replay.trace.places import user_frame

if TYPE_CHECKING:
    from postmortem.replay.step.runner import StepRunner

Kind = Literal["dead-units", "saturated", "constant-output"]
SHARE = 0.9
"""A layer does not learn if so much of it is dead or saturated."""
_CUT = ("relu", "relu_", "relu6", "threshold", "threshold_")
_BOUNDED = {"tanh": (-1.0, 1.0), "tanh_": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "sigmoid_": (0.0, 1.0)}
_NEAR = 0.01  # of the range: an output so near to its bound has a derivative of a few percent at most


@dataclass(slots=True)
class Layer:
    """One activation, or one module with a constant output. share: of its units that are dead or saturated."""

    module: str
    kind: Kind
    function: str
    share: float
    units: int
    file: str | None = None
    line: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for the same layer in another step."""
        return self.module, self.kind, self.function


class Activity(StepMode):
    """While it is entered, notes the activations of a forward pass, the first first, in `layers`.

    The module of an activation is the one that made its input, if one did, else the one that runs.
    """

    def __init__(self, runner: StepRunner) -> None:
        super().__init__()
        self._runner, self._handles = runner, list[Any]()
        self._made: dict[int, tuple[str, torch.Tensor]] = {}
        self._running: list[str] = []
        self._depth = 0
        self.layers: list[Layer] = []

    def __enter__(self) -> Activity:
        self._depth += 1
        super().__enter__()
        if self._depth > 1:  # again, for a backward pass
            return self
        for key, model in self._runner.models.items():
            for name, module in model.named_modules():
                named = plain_name(key, name)
                self._handles.append(module.register_forward_pre_hook(lambda m, a, n=named: self._running.append(n)))
                leaf = next(module.children(), None) is None
                self._handles.append(module.register_forward_hook(self._ends(named, leaf=leaf)))
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if self._depth:
            return
        for handle in self._handles:
            handle.remove()
        self._made.clear()

    def _ends(self, name: str, *, leaf: bool) -> Any:
        def note(module: Any, args: Any, output: Any) -> None:
            self._running.pop()
            out = output if isinstance(output, torch.Tensor) else None
            if out is None or not leaf or not out.is_floating_point():
                return
            if next(module.parameters(), None) is None:
                return  # an activation is noted by its function
            self._made[id(out)] = name, out
            given = next((t for t in tensors_in(args) if t.dim()), None)
            if out.dim() > 1 and len(out) > 1 and _same(out) and given is not None and not _same(given):
                frame = user_frame(sys._getframe(1).f_back)
                self.layers.append(
                    Layer(name, "constant-output", type(module).__name__, 1.0, out.shape[-1], *_at(frame))
                )

        return note

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Notes the function where it is an activation; changes nothing."""
        name = getattr(func, "__name__", "")
        if name not in _CUT and name not in _BOUNDED:
            return func, args, kwargs
        frame = user_frame(sys._getframe(2))
        module = self._of(args)

        def noted(*given: Any, **named: Any) -> Any:
            out = func(*given, **named)
            if isinstance(out, torch.Tensor) and out.dim() > 1 and out.numel():
                self.layers.append(_layer(module, name, out.detach(), *_at(frame)))
            return out

        return noted, args, kwargs

    def _of(self, args: tuple[Any, ...]) -> str:
        made = self._made.get(id(args[0])) if args else None
        if made is not None and made[1] is args[0]:
            return made[0]
        return self._running[-1] if self._running else ""

    def silent(self) -> Layer | None:
        """The first layer that is dead, saturated or constant for the most part."""
        return next((layer for layer in self.layers if layer.share >= SHARE), None)


def _at(frame: Any) -> tuple[str | None, int | None]:
    return (None, None) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _same(t: torch.Tensor) -> bool:
    return bool((t[1:] == t[:1]).all())


def _layer(module: str, name: str, out: torch.Tensor, file: str | None, line: int | None) -> Layer:
    units = out.movedim(1, -1) if out.dim() > 3 else out
    units = units.reshape(-1, units.shape[-1])
    if name in _CUT:
        share = float((units == 0).all(0).double().mean())
        return Layer(module, "dead-units", name, share, units.shape[-1], file, line)
    low, high = _BOUNDED[name]
    margin = _NEAR * (high - low)
    share = float(((units < low + margin) | (units > high - margin)).double().mean())
    return Layer(module, "saturated", name, share, units.shape[-1], file, line)


@dataclass(slots=True)
class Movement:
    """Which parameters some steps moved. still: name -> why it did not move. total, moved: numbers of values."""

    still: dict[str, str] = field(default_factory=dict)
    total: int = 0
    moved: int = 0


def movement(runner: StepRunner, first: int, steps: int) -> Movement:
    """Runs `steps` steps from the present state on, and compares every parameter bit by bit."""
    before = {name: p.detach().clone() for name, p in runner.named_parameters().items()}
    gradients: dict[str, str] = {}

    def look(kind: str, tensors: dict[str, torch.Tensor]) -> None:
        for name, p in runner.named_parameters().items() if kind == "grad" else ():
            if p.grad is None:
                gradients.setdefault(name, "no-gradient")
            elif gradients.get(name) != "gradient":
                gradients[name] = "gradient" if bool((p.grad != 0).any()) else "zero-gradient"

    with runner.observing(look):
        for step in range(first, first + steps):
            runner.run(runner.draw(step), step)
    rates = {
        id(p): float(g.get("lr", 1.0)) for o in runner.optimizers.values() for g in o.param_groups for p in g["params"]
    }
    made = Movement()
    for name, p in runner.named_parameters().items():
        made.total += p.numel()
        if not torch.equal(p.detach(), before[name]):
            made.moved += p.numel()
        elif not p.requires_grad:
            made.still[name] = "frozen"
        elif id(p) not in rates:
            made.still[name] = "not-in-optimizer"
        elif rates[id(p)] == 0:
            made.still[name] = "zero-rate"
        else:
            made.still[name] = gradients.get(name, "no-gradient")
    return made
