"""Which code is the user's, and whether what they handed over can be what it has to be."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.model import TrainStep

if TYPE_CHECKING:
    from collections.abc import Callable

_BEGINNINGS = (
    "<frozen",
    str(Path(__file__).parents[2]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)
_PACKAGES = {"site-packages", "dist-packages"}


def not_the_users(file: str) -> bool:
    """Whether a file is the interpreter's, a package's or ours; packages may lie in several places (the user's site, an environment
    below another, PYTHONPATH)."""
    return file.startswith(_BEGINNINGS) or not _PACKAGES.isdisjoint(PurePath(file).parts)


def installed(name: str, module: Any) -> bool:
    """Whether a module is the interpreter's, a package's or ours, which no file of the user takes the place of."""
    origin = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    return top in ("__main__", "postmortem") or top in sys.stdlib_module_names or (origin is not None and not_the_users(origin))


def wrong(step: Any) -> str | None:
    """What in a TrainStep cannot be what it has to be, in words; None where nothing is."""
    if not isinstance(step, TrainStep):
        return f"a postmortem.TrainStep is needed, not {_given(step)}"
    fields: tuple[tuple[str, Any, str, Callable[[Any], bool]], ...] = (
        ("model", step.model, "a torch.nn.Module", lambda m: hasattr(m, "parameters") and not isinstance(m, type)),
        ("optimizer", step.optimizer, "an optimizer", lambda o: hasattr(o, "zero_grad") and hasattr(o, "state_dict")),
        ("step", step.step, "a function step(model, batch)", callable),
        ("scheduler", step.scheduler or {}, "a learning rate scheduler", lambda s: hasattr(s, "step") and hasattr(s, "state_dict")),
        ("scaler", step.scaler, "True, False or a GradScaler", lambda s: s in (True, False, None) or hasattr(s, "scale")),
        ("sample_dim", step.sample_dim, "a dict of keys and dimensions", lambda d: isinstance(d, int)),
    )
    for name, value, what, fits in fields:
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if name == "scheduler" and isinstance(value, (list, tuple))
            else [(None, value)]
        )
        for key, one in items:
            if not fits(one):
                return f"{name}{'' if key is None else f'[{key!r}]'} must be {what}, not {_given(one)}"
    if isinstance(step.step, dict) and (fault := _sub_steps(step.step, step.optimizer)) is not None:
        return fault
    steps = step.step.items() if isinstance(step.step, dict) else [("", step.step)]
    functions = [(f"step[{name!r}]" if name else "step", "(model, batch)", f, 2) for name, f in steps]
    functions += [(name, "(step)", f, 1) for name, f in (("batches", step.batches), ("before_step", step.before_step)) if callable(f)]
    for name, given, function, count in functions:
        if not _takes(function, count):
            return f"{name} is called as {name}{given}, but {getattr(function, '__name__', 'it')}{inspect.signature(function)} cannot be"
    models = step.model.values() if isinstance(step.model, dict) else [step.model]
    if any(isinstance(p, torch.nn.UninitializedParameter) for m in models for p in m.parameters()):
        return "the model has layers whose sizes are not known yet (lazy modules): run it once on a batch, or load its weights, first"
    if any(p.is_meta for m in models for p in m.parameters()):
        return "the model is on the meta device: it has no values"
    if step.autocast not in (None, "fp16", "bf16"):
        return f"autocast is None, 'fp16' or 'bf16', not {step.autocast!r}"
    if not hasattr(step.accumulate, "__index__") or step.accumulate < 1:
        return f"accumulate is the number of micro-batches of a step, not {step.accumulate!r}"
    for name, number, kind in (
        ("clip", step.clip, "__float__"),
        ("init_scale", step.init_scale, "__float__"),
        ("first_step", step.first_step, "__index__"),
    ):
        if number is not None and (not hasattr(number, kind) or isinstance(number, bool)):
            return f"{name} is a number, not {number!r}"
    if inspect.isgeneratorfunction(step.batches):
        return "batches is a generator function: give what it returns when it is called, an iterable from the checkpoint on"
    if step.batches is not None and not callable(step.batches) and not hasattr(step.batches, "__iter__"):
        return f"batches is a function of the step or an iterable, not {_given(step.batches)}"
    return None


def _sub_steps(steps: dict[str, Any], optimizer: Any) -> str | None:
    """What is wrong with a dict of sub-steps, whose names are those of the optimizers."""
    names = ", ".join(map(repr, steps))
    if not isinstance(optimizer, dict):
        return f"step is a dict ({names}), by the names of the optimizers, but there is one without a name: give optimizer={{{names}: …}} or one step"
    unknown = [name for name in steps if name not in optimizer]
    return f"step has a sub-step {unknown[0]!r}, but the optimizers are {', '.join(map(repr, optimizer))}" if unknown else None


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C: it does not say
        return True
    return True


def _given(value: Any) -> str:
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else "None"
        if value is None
        else f"a{'n' * (type(value).__name__[0] in 'aeiou')} {type(value).__name__}"
    )
