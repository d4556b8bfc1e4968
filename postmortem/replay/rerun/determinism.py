"""Runs the failing step again: bitwise identical results show that it is deterministic, different ones point at an
operator or the hardware."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.runner import StepRunner

_VIEWS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Again:
    """The result of running a step again.

    message: the result in words. transient: the failure did not recur. comes_and_goes: it recurred only once.
    """

    message: str
    deterministic: bool
    transient: bool
    comes_and_goes: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A roll, and the result of running its step at fault again (None if that was not done)."""

    roll: Roll
    again: Again | None = None


def checksum(runner: StepRunner) -> tuple[int, ...]:
    """One number per parameter, computed from its bits: equal for equal bits, NaN included."""
    sums = []
    for p in runner.named_parameters().values():
        values = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
        sums.append(values.contiguous().view(_VIEWS[values.element_size()]).sum(dtype=torch.int64))
    return tuple(torch.stack(sums).tolist()) if sums else ()


def run_again(runner: StepRunner, done: Roll, step: int, *, just_run: bool = False) -> Again:
    """Runs `step` twice from the state before it and compares losses, gradient norm and every parameter bit by bit.

    just_run: the runner is in the state in which the roll left that step, which counts as one of the two runs if the
    other is equal. Non-finite numbers may hide a difference, so the first step of the roll is then run again, too.
    """
    rolled = done.result(step)
    hidden = not all(map(math.isfinite, rolled.losses.values()))
    # after a non-finite loss no other number gives more information
    early = just_run and hidden and done.raised is None and not isinstance(runner.train_step.step, dict)
    seen = (
        (_numbers(rolled, done.raised, early), () if early else checksum(runner), rolled.first_nonfinite)
        if just_run
        else None
    )
    results = [_once(runner, done, step, early=early)]
    if seen != results[0]:
        seen = None
        results = [_once(runner, done, step)] if early else results
    results.append(seen or _once(runner, done, step))
    if results[0] != results[1]:
        gone = [first is None for *_, first in results]
        return Again(_differs("the step", runner, done, step), False, all(gone), any(gone))
    if results[0][2] is None:
        message = "rerun from the same state, the step is finite: a transient fault (hardware, or a race condition)"
        return Again(message, True, True)
    if step > done.first and _once(runner, done, done.first)[0] != _numbers(done.results[0], None):
        return Again(_differs(f"step {done.first}", runner, done, done.first), False, False)
    if hidden and step == done.first:
        return Again("run twice from the same state, the step fails in the same way", True, False)
    return Again("run twice from the same state, the step gives bitwise identical results: deterministic", True, False)


def _differs(which: str, runner: StepRunner, done: Roll, step: int) -> str:
    message = f"run twice from the same state, {which} gives bitwise different results"
    ops = _nondeterministic_ops(runner, done, step)
    if ops:
        have = "has" if len(ops) == 1 else "have"
        return f"{message}: {', '.join(ops)} {have} no deterministic implementation"
    unknown = "suspect code that reads the clock or the system's random numbers, a race condition, or the hardware"
    return f"{message}, and no operator in it is known to be nondeterministic: {unknown}"


def _once(runner: StepRunner, done: Roll, step: int, *, early: bool = False) -> tuple[str, tuple[int, ...], str | None]:
    """One run of the step, with `early` only up to the loss: its numbers (or what it raised), the checksum of the
    parameters after it, and where it first failed."""
    runner.restore(done.before if step != done.first else done.start)
    batch = runner.again(step) if step != done.first else runner.draw(step)
    try:
        result = runner.run(batch, step, until="loss" if early else "step")
    except Exception as error:
        if done.raised is None:
            raise
        return _numbers(None, error), checksum(runner), "loss"
    return _numbers(result, None, early), () if early else checksum(runner), result.first_nonfinite


def _numbers(result: StepResult | None, raised: Exception | None, early: bool = False) -> str:
    """The numbers of a step, with `early` its losses alone; or what it raised."""
    if raised is not None or result is None:
        return re.sub(r"0x[0-9a-f]+", "", f"{type(raised).__name__}: {raised}")
    return repr(result.losses) if early else f"{result.losses!r} {result.grad_norm!r} {result.bad_grads!r}"


def _nondeterministic_ops(runner: StepRunner, done: Roll, step: int) -> list[str]:
    """The operators in the step for which torch reports that there is no deterministic implementation."""
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            _once(runner, done, step)
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
    names = [re.match(r"(\S+) does not have a deterministic implementation", str(w.message)) for w in caught]
    return sorted({m.group(1) for m in names if m})
