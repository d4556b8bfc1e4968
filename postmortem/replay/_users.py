"""Which code is the user's, and whether what they handed over can be what it has to be."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.model import TrainStep

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_THE_USERS = (
    "<frozen",
    str(Path(__file__).parents[1]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)
"""How the paths of files begin that are the interpreter's, a package's or ours."""


def installed(name: str, module: Any) -> bool:
    """Whether a module is the interpreter's, a package's or ours, which no file of the user takes the place of."""
    origin = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    return top in ("__main__", "postmortem") or top in sys.stdlib_module_names or (origin is not None and origin.startswith(NOT_THE_USERS))


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
    if step.batches is not None and not callable(step.batches) and not hasattr(step.batches, "__iter__"):
        return f"batches is a function of the step or an iterable, not {_given(step.batches)}"
    return None


def _given(value: Any) -> str:
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else "None"
        if value is None
        else f"a{'n' * (type(value).__name__[0] in 'aeiou')} {type(value).__name__}"
    )
