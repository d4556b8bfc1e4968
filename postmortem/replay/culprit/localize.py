"""`localize`: names the culprit of a failing step, by tracing reruns of it, the cheapest question first."""

from __future__ import annotations

import math
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.errors import ReplayError
from postmortem.replay.culprit.investigation import Investigation
from postmortem.replay.culprit.stages import STAGES, diagnose
from postmortem.replay.fixes import FIXES
from postmortem.replay.recipe.check import check
from postmortem.replay.recipe.user_errors import call_user, describe
from postmortem.replay.rerun.determinism import Fault, run_again
from postmortem.replay.rerun.reruns import Reruns
from postmortem.replay.rerun.session import TRIES, Failure
from postmortem.replay.roll import roll as rolling
from postmortem.replay.roll.level import COURSE
from postmortem.replay.step.errors import Raised, error_site
from postmortem.replay.step.process_state import preserved
from postmortem.replay.step.runner import StepRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.culprit import Culprit
    from postmortem.replay.model import TrainStep
    from postmortem.replay.roll.sought import Sought

_MANY_STEPS = 1_000_000


def localize(
    train_step: TrainStep,
    *,
    step: int | None = None,
    device: Any = None,
    fixes: bool = True,
    runner: StepRunner | None = None,
    rolled: Fault | None = None,
    sought: Sought | None = None,
) -> Culprit:
    """Names the culprit of the first step with a non-finite loss, gradient or parameter.

    step: the last step to look at, counted as in the log (default: all batches of a list, or the one `batch`).
    fixes: whether fixes are tried. runner, rolled: steps that have been rolled forward already. sought: a finding of
    finite values to explain. device: device of the reruns, by default that of the model.

    A step that raises because of a non-finite value (an assertion, an argument check of torch.distributions) is traced
    up to the exception. Model, optimizer, random generators, hooks and flags are unchanged when it returns or raises.
    Raises ReplayError if the step cannot be run.
    """
    check(train_step)
    runner = runner or StepRunner(train_step)
    if device is not None and str(device).partition(":")[0] != runner.device.type:
        there = "build it there (ctx.device in a recipe)"
        raise ReplayError(f"the model is on {runner.device}, not on {device}: {there}")
    reported = rolled is not None
    before = runner.snapshot()
    with preserved(runner.models.values()), warnings.catch_warnings(), _eager(runner) as compiled:
        warnings.simplefilter("ignore")
        try:
            fault = rolled or _fault(runner, train_step, step)
            case = _investigation(runner, fault, fixes=fixes, reported=reported, sought=sought)
            found = diagnose(case)
            if case.reruns.luck.times > case.times:  # the reruns turned out to be nondeterministic: cures may be luck
                again = _investigation(runner, fault, fixes=fixes, reported=reported, times=TRIES, sought=sought)
                found = diagnose(again)
        finally:
            runner.restore(before)
    if compiled:
        note = "torch.compile was disabled for the reruns: operators inside compiled code cannot be traced"
        found = replace(found, how=(*found.how, note))
    return found


def _investigation(runner: StepRunner, fault: Fault, **options: Any) -> Investigation:
    failure = _failure(fault)
    return Investigation(Reruns(runner, fault.roll, failure.last), failure, **options)


def _failure(fault: Fault) -> Failure:
    done = fault.roll
    step = done.fault if done.fault is not None else done.overflow
    last = done.last if step is None else step
    result = done.result(last)
    return Failure(
        step=step,
        last=last,
        first=done.first,
        overflow=done.overflow is not None,
        scale=done.results[-1].scale,
        lr=result.lr if step is not None else 0.0,
        loss=result.loss,
        course=[r.loss for r in done.results if r.step < last and math.isfinite(r.loss)][-COURSE:],
        raised=None if done.raised is None else Raised(describe("", done.raised), error_site(done.raised)),
        again=fault.again,
    )


def _fault(runner: StepRunner, train_step: TrainStep, step: int | None) -> Fault:
    """Rolls forward up to the first fault and runs that step again."""
    done = call_user("loading the batches", _roll, runner, train_step, step)
    if done.fault is None:
        return Fault(done)
    return Fault(done, call_user("rerunning the step", partial(run_again, just_run=True), runner, done, done.fault))


def _eager(runner: StepRunner) -> Any:
    """A context without torch.compile; its value is whether anything is known to be compiled."""
    if "torch._dynamo" not in sys.modules:  # torch.compile imports it
        return nullcontext(False)
    from torch._dynamo import OptimizedModule

    modules = [m for model in [*runner.models.values(), *runner.outside.modules.values()] for m in model.modules()]
    compiled = any(isinstance(m, OptimizedModule) or getattr(m, "_compiled_call_impl", None) for m in modules)
    return _without_compiling(runner.outside.compiled or compiled)


@contextmanager
def _without_compiling(known: bool) -> Iterator[bool]:
    with torch.compiler.set_stance("force_eager"):
        yield known


def _roll(runner: StepRunner, train_step: TrainStep, step: int | None) -> rolling.Roll:
    batches = train_step.batches
    if batches is None:
        only = step if step is not None else int(train_step.first_step or 0)
        return rolling.roll(runner, only, only)
    first = int(train_step.first_step or 0)
    if step is not None:
        return rolling.roll(runner, first, max(first, step))
    if callable(batches):
        raise ReplayError("batches is a function of the step: give the last step to run (step=)")
    known = getattr(batches, "__len__", None)
    return rolling.roll(runner, first, first + (max(known(), 1) - 1 if known is not None else _MANY_STEPS))


for _registry in (STAGES, FIXES):  # imported with this module, so that the first diagnosis takes as long as the next
    _registry.load()
