"""Writes a stand-alone script that reproduces the failure of one operator with torch alone.

The step is run once more, and the arguments of the operator at the culprit's line (or in torch's own optimizer) are
copied. The script calls that operator on the copies. For a failure in the backward pass it also runs the operator's
backward, unless the line is in the user's Python code that runs in that pass.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.trace.operators import canonical

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from postmortem.core.culprit import Culprit
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.runner import StepRunner

_Call = tuple[str, Any, Any, bool]
"""(operator, positional arguments, keyword arguments, whether it made new non-finite values)."""

SCRIPT = '''"""{what}

Needs torch, and tensors.pt in the same folder. Run:  python repro.py
"""

import pathlib

import torch


def tensors(held):
    if torch.is_tensor(held):
        return [held] if held.is_floating_point() or held.is_complex() else []
    return [t for part in held for t in tensors(part)] if isinstance(held, (list, tuple)) else []


args, kwargs = torch.load(pathlib.Path(__file__).with_name("tensors.pt"), weights_only=True)
{run}
bad = [t for t in results if not torch.isfinite(t).all()]
print("reproduced: non-finite values" if bad else "not reproduced: all values are finite")
for t in bad:
    first = (~torch.isfinite(t)).nonzero()[0].tolist()
    print(f"{{tuple(t.shape)}} {{t.dtype}}: {{int((~torch.isfinite(t)).sum())}} non-finite values, \
the first at index {{first}}")
'''
FORWARD = """out = torch.ops.aten.{op}(*args, **kwargs)
results = tensors(out)"""
IN_PLACE = """torch.ops.aten.{op}(*args, **kwargs)
results = tensors(args)"""
BACKWARD = """inputs = [t.requires_grad_() for t in tensors(args)]
made = [t for t in tensors(torch.ops.aten.{op}(*args, **kwargs)) if t.requires_grad]
results = [g for g in torch.autograd.grad(made, inputs, [torch.ones_like(t) for t in made], \
allow_unused=True) if g is not None]"""


class _Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the arguments of every call of the operator `op` from the line `line` of `file` (None: from anywhere).

    New non-finite values are a NaN if the arguments have none, or an infinity if they are finite.
    """

    def __init__(self, op: str, file: str | None, line: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.file, self.line = op, file, line
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, _, overload = str(func).removeprefix("aten.").partition(".")
        wanted = canonical(name) == self.op and self._from_line()
        kept = tensor_map(_copy, (args, kwargs)) if wanted else None
        out = func(*args, **kwargs)
        if kept is not None:
            written = (out, args) if _in_place(name) else out
            made = (_any(torch.isnan, written) and not _any(torch.isnan, kept)) or (
                _any(torch.isinf, written) and not _odd(kept)
            )
            self.calls.append((f"{name}.{overload}", *kept, made))
        return out

    def _from_line(self) -> bool:
        frame: FrameType | None = sys._getframe(2) if self.file is not None else None
        while frame is not None:
            if frame.f_lineno == self.line and frame.f_code.co_filename == self.file:
                return True
            frame = frame.f_back
        return self.file is None


def _numbers(held: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(held) if t.is_floating_point() or t.is_complex()]


def _any(what: Callable[[torch.Tensor], torch.Tensor], held: Any) -> bool:
    return any(bool(what(t).any()) for t in _numbers(held))


def _odd(held: Any) -> bool:
    return _any(lambda t: ~torch.isfinite(t), held)


def _in_place(name: str) -> bool:
    return name.partition(".")[0].endswith("_") and not name.startswith("__")


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone().cpu()


def write_repro(folder: Path, runner: StepRunner, done: Roll, found: Culprit) -> str:
    """Writes repro.py and tensors.pt into `folder`. Returns one sentence: the path, or why nothing was written."""
    if found.op is None or found.step is None or (found.file is None and found.phase != "optimizer"):
        return f"no stand-alone script was written: phase {found.phase} has no single operator with a source line"
    here = False  # the step at fault itself made the non-finite values
    for backward in {"backward": (True, False), "forward": (False, True)}.get(found.phase, (False,)):
        until: Any = "step" if found.phase == "optimizer" else "loss"
        if found.phase == "backward" and not backward:
            until = "grad"
        calls = _calls(runner, done, found, until)
        here = here or any(made for *_, made in calls)
        shown = _first_that_shows(folder, found, calls if backward else [c for c in calls if c[3]], backward=backward)
        if shown is not None:
            return shown
    if not here:
        step, calls = _in_an_earlier_step(runner, done, found)
        shown = _first_that_shows(folder, replace(found, step=step), calls, backward=False)
        if shown is not None:
            return shown
    return f"no stand-alone script was written: {found.op} alone does not reproduce the failure"


def _first_that_shows(folder: Path, found: Culprit, calls: list[_Call], *, backward: bool) -> str | None:
    """The result of writing the first call that reproduces the failure; None if no call does."""
    for op, args, kwargs, _ in calls:
        forward = IN_PLACE if _in_place(op) else FORWARD
        run = (BACKWARD if backward else forward).format(op=op)
        if _shows(run, args, kwargs):
            try:
                return _written(folder, found, run, args, kwargs)
            except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a folder that it cannot write to
                why = getattr(error, "strerror", None) or str(error).splitlines()[0]
                return f"no stand-alone script was written to {folder}: {why}"
    return None


def _in_an_earlier_step(runner: StepRunner, done: Roll, found: Culprit) -> tuple[int, list[_Call]]:
    """The last earlier step in which the operator made non-finite values, and its calls there."""
    assert found.op is not None
    assert found.step is not None
    last: tuple[int, list[_Call]] = (found.step, [])
    runner.restore(done.start)
    for step in range(done.first, found.step):
        batch = runner.draw(step)
        with _Capture(found.op, found.file, found.line) as seen:
            runner.run(batch, step)
        odd = [c for c in seen.calls if c[3]]
        last = (step, odd) if odd else last
    return last


def _calls(runner: StepRunner, done: Roll, found: Culprit, until: Literal["loss", "grad", "step"]) -> list[_Call]:
    assert found.op is not None
    assert found.step is not None
    runner.restore(done.before)
    refused = () if done.raised is None else (type(done.raised),)  # the step raises because of what the operator made
    seen = _Capture(found.op, found.file, found.line)
    with suppress(*refused), seen:
        runner.run(runner.again(found.step), found.step, until=until)
    return seen.calls


def _written(folder: Path, found: Culprit, run: str, args: Any, kwargs: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save((args, kwargs), folder / "tensors.pt")
    place = (
        f"{found.file}:{found.line}\n    {found.code or ''}"
        if found.file is not None
        else f"the optimizer, for {found.param}"
    )
    what = (
        f"{found.op}, {found.phase} pass of step {found.step}: {place}"
        if found.file
        else f"{found.op} at step {found.step}: {place}"
    )
    docstring = what.replace("\\", "\\\\").replace('"', "'")
    (folder / "repro.py").write_text(SCRIPT.format(what=docstring, run=run), encoding="utf-8")
    return f"a stand-alone script that reproduces the failure: {folder / 'repro.py'}"


def _shows(run: str, args: Any, kwargs: Any) -> bool:
    """True if the lines of the script, run on the copied arguments, give non-finite values."""
    scope: dict[str, Any] = {"torch": torch, "tensors": _numbers, "args": tensor_map(_copy, args), "kwargs": kwargs}
    try:
        with torch.enable_grad():
            exec(run, scope)
    except (RuntimeError, TypeError, AttributeError):  # it cannot be called in this way: the next call is tried
        return False
    return _odd(scope["results"])
