"""Checks the fields of a user's TrainStep before anything is run."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.errors import ReplayError
from postmortem.replay.model import TrainStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def check(step: Any, source: str = "") -> None:
    """Raises ReplayError for the first field of a TrainStep with an unusable value; the message begins with
    `source`."""
    if (fault := next(_faults(step), None)) is not None:
        raise ReplayError(f"{source}{fault}")


def _faults(step: Any) -> Iterator[str]:
    if not isinstance(step, TrainStep):
        yield f"a postmortem.TrainStep is needed, not {_given(step)}"
        return
    yield from _unfit_fields(step)
    if isinstance(step.step, dict):
        yield from _sub_steps(step.step, step.optimizer)
    yield from _calls(step)
    yield from _models(step)
    yield from _options(step)
    if inspect.isgeneratorfunction(step.batches):
        called = "call it and give its result, which begins with the first batch after the checkpoint"
        yield f"batches is a generator function: {called}"
    if step.batches is not None and not callable(step.batches) and not hasattr(step.batches, "__iter__"):
        yield f"batches must be a function of the step or an iterable, not {_given(step.batches)}"


_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("model", "a torch.nn.Module", lambda m: hasattr(m, "parameters") and not isinstance(m, type)),
    ("optimizer", "an optimizer", lambda o: hasattr(o, "zero_grad") and hasattr(o, "state_dict")),
    ("step", "a function step(model, batch)", callable),
    ("scheduler", "a learning rate scheduler", lambda s: hasattr(s, "step") and hasattr(s, "state_dict")),
    ("scaler", "True, False or a GradScaler", lambda s: s in (True, False, None) or hasattr(s, "scale")),
    ("sample_dim", "a dict of keys and dimensions", lambda d: isinstance(d, int)),
)
"""(field, what it must be, test of its value or, if it is a dict, of each value)."""


def _unfit_fields(step: TrainStep) -> Iterator[str]:
    for name, what, fits in _FIELDS:
        value = getattr(step, name)
        items: Iterable[tuple[Any, Any]] = [(None, value)]
        if isinstance(value, dict):
            items = value.items()
        elif name == "scheduler" and isinstance(value, (list, tuple)):
            items = enumerate(value)
        elif name == "scheduler" and not value:
            continue
        for key, one in items:
            if not fits(one):
                yield f"{name}{'' if key is None else f'[{key!r}]'} must be {what}, not {_given(one)}"


def _sub_steps(steps: dict[str, Any], optimizer: Any) -> Iterator[str]:
    """Faults in a dict of sub-steps, whose keys are the names of the optimizers."""
    names = ", ".join(map(repr, steps))
    if not isinstance(optimizer, dict):
        single = "keyed by the names of the optimizers, but there is one without a name"
        yield f"step is a dict ({names}), {single}: give optimizer={{{names}: …}} or a single step"
        return
    for name in steps:
        if name not in optimizer:
            yield f"step has a sub-step {name!r}, but the optimizers are {', '.join(map(repr, optimizer))}"


def _calls(step: TrainStep) -> Iterator[str]:
    """Functions that do not accept the arguments that they are called with."""
    steps = step.step.items() if isinstance(step.step, dict) else [("", step.step)]
    calls = [(f"step[{name!r}]" if name else "step", "(model, batch)", f, 2) for name, f in steps]
    calls += [(name, "(step)", getattr(step, name), 1) for name in ("batches", "before_step")]
    for name, given, function, count in calls:
        if callable(function) and not _takes(function, count):
            own = f"{getattr(function, '__name__', 'it')}{inspect.signature(function)}"
            yield f"{name} is called as {name}{given}, but {own} cannot be called so"


def _models(step: TrainStep) -> Iterator[str]:
    models = step.model.values() if isinstance(step.model, dict) else [step.model]
    parameters = [p for m in models for p in m.parameters()]
    if any(isinstance(p, torch.nn.UninitializedParameter) for p in parameters):
        lazy = "the model has uninitialized parameters (lazy modules)"
        yield f"{lazy}: run it once on a batch, or load its weights, first"
    if any(p.is_meta for p in parameters):
        yield "the model is on the meta device: its parameters have no values"


def _options(step: TrainStep) -> Iterator[str]:
    if step.autocast not in (None, "fp16", "bf16"):
        yield f"autocast must be None, 'fp16' or 'bf16', not {step.autocast!r}"
    if not hasattr(step.accumulate, "__index__") or step.accumulate < 1:
        yield f"accumulate must be the number of micro-batches of a step, not {step.accumulate!r}"
    if not hasattr(step.ranks, "__index__") or isinstance(step.ranks, bool) or step.ranks < 1:
        yield f"ranks must be the number of processes of the training, not {step.ranks!r}"
    for name, method in (("clip", "__float__"), ("init_scale", "__float__"), ("first_step", "__index__")):
        number = getattr(step, name)
        if number is not None and (not hasattr(number, method) or isinstance(number, bool)):
            yield f"{name} must be a number, not {number!r}"


def _takes(function: Any, count: int) -> bool:
    """True if `function` can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C: the signature is unknown
        return True
    return True


def _given(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"a{'n' * (name[0] in 'aeiou')} {name}"
