"""Writes a stand-alone script that shows the fault of one operator with torch alone.

The step is run once more, and what the operator at the culprit's line was given is copied. The script calls that operator on the
copy; for a fault of the backward pass it also runs the operator's backward.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from postmortem.replay.batches import tensor_map, tensors_in
from postmortem.replay.localize import canonical

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from postmortem.replay.model import Culprit
    from postmortem.replay.rolling import Roll
    from postmortem.replay.runner import StepRunner

SCRIPT = '''"""{what}

Needs torch and tensors.pt beside it:  python repro.py
"""

import pathlib

import torch

args, kwargs = torch.load(pathlib.Path(__file__).with_name("tensors.pt"), weights_only=True)
{run}
bad = [t for t in results if not torch.isfinite(t).all()]
print("reproduced: not finite" if bad else "not reproduced: all finite")
for t in bad:
    first = (~torch.isfinite(t)).nonzero()[0].tolist()
    print(f"{{tuple(t.shape)}} {{t.dtype}}: {{int((~torch.isfinite(t)).sum())}} values are not finite, the first at {{first}}")
'''
FORWARD = """out = torch.ops.aten.{op}(*args, **kwargs)
results = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t) and t.is_floating_point()]"""
BACKWARD = """inputs = [t.requires_grad_() for t in args if torch.is_tensor(t) and t.is_floating_point()]
out = torch.ops.aten.{op}(*args, **kwargs)
out = out[0] if isinstance(out, (tuple, list)) else out
results = [g for g in torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True) if g is not None]"""


class _Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the arguments of every call of the operator `op` from the line `line` of `file`, with whether it made something non-finite."""

    def __init__(self, op: str, file: str, line: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.file, self.line = op, file, line
        self.calls: list[tuple[str, Any, Any, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, _, overload = str(func).removeprefix("aten.").partition(".")
        wanted = canonical(name) == self.op and self._from_line()
        kept = tensor_map(_copy, (args, kwargs)) if wanted else None
        out = func(*args, **kwargs)
        if kept is not None:
            bad = any(not torch.isfinite(t).all() for t in tensors_in(out) if t.is_floating_point() or t.is_complex())
            self.calls.append((f"{name}.{overload}", *kept, bad))
        return out

    def _from_line(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_lineno == self.line and frame.f_code.co_filename == self.file:
                return True
            frame = frame.f_back
        return False


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone().cpu()


def write_repro(folder: Path, runner: StepRunner, done: Roll, found: Culprit) -> str:
    """Writes repro.py and tensors.pt into `folder` and says so, or says in one sentence why that cannot be done."""
    if found.op is None or found.file is None or found.line is None or found.phase not in ("forward", "backward") or found.step is None:
        return f"no stand-alone script was written: a fault of phase {found.phase} has no single operator with a line"
    runner.restore(done.before)
    refused = () if done.raised is None else (type(done.raised),)  # the step raises over what the operator made
    with suppress(*refused), _Capture(found.op, found.file, found.line) as seen:
        runner.run(runner.again(found.step), found.step, until="loss")
    calls = [c for c in seen.calls if c[3]] if found.phase == "forward" else seen.calls
    for op, args, kwargs, _ in calls:
        run = (FORWARD if found.phase == "forward" else BACKWARD).format(op=op)
        if not _shows(run, args, kwargs):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        torch.save((args, kwargs), folder / "tensors.pt")
        what = f"{found.op}, {found.phase} pass of step {found.step}: {found.file}:{found.line}\n    {found.code or ''}"
        said = what.replace("\\", "\\\\").replace('"', "'")  # it becomes a docstring
        (folder / "repro.py").write_text(SCRIPT.format(what=said, run=run), encoding="utf-8")
        return f"a stand-alone script that shows the fault: {folder / 'repro.py'}"
    return f"no stand-alone script was written: {found.op} alone does not show the fault"


def _shows(run: str, args: Any, kwargs: Any) -> bool:
    """Whether the lines of the script, run on the copied arguments, give something non-finite."""
    scope: dict[str, Any] = {"torch": torch, "args": tensor_map(_copy, args), "kwargs": kwargs}
    try:
        with torch.enable_grad():
            exec(run, scope)
    except (RuntimeError, TypeError, AttributeError):  # an operator that cannot be called so: the next one is tried
        return False
    return any(not torch.isfinite(t).all() for t in scope["results"])
