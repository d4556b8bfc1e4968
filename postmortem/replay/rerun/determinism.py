"""Runs the offending step again: the same bits say it is deterministic, other bits name the operator or the hardware."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.runner import StepResult, StepRunner

_VIEWS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Again:
    """What running a step again showed; `transient`: the fault did not come back. `comes_and_goes`: it did not each time."""

    said: str
    deterministic: bool
    transient: bool
    comes_and_goes: bool = False


def checksum(runner: StepRunner) -> tuple[int, ...]:
    """One number per parameter over its bits: equal for equal bits, also of NaN."""
    sums = []
    for p in runner.named_parameters().values():
        values = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
        sums.append(values.contiguous().view(_VIEWS[values.element_size()]).sum(dtype=torch.int64))
    return tuple(torch.stack(sums).tolist()) if sums else ()


def run_again(runner: StepRunner, done: Roll, step: int, *, behind: bool = False) -> Again:
    """Runs `step` twice from the state before it and compares loss, gradient norm and every parameter, bit by bit.

    behind: the runner stands behind that step as the roll left it, which counts as one of the runs if the other is like it. A step
    whose numbers are not finite hides it where they differ: then the first step of the roll is run again, too.
    """
    rolled = done.result(step)
    hidden = not all(map(math.isfinite, rolled.losses.values()))
    # after a loss that is not finite no number says more than it does
    early = behind and hidden and done.raised is None and not isinstance(runner.train_step.step, dict)
    seen = (_numbers(rolled, done.raised, early), () if early else checksum(runner), rolled.first_nonfinite) if behind else None
    results = [_once(runner, done, step, early=early)]
    if seen != results[0]:
        seen = None
        results = [_once(runner, done, step)] if early else results
    results.append(seen or _once(runner, done, step))
    if results[0] != results[1]:
        gone = [first is None for *_, first in results]
        return Again(f"run twice from the same state, the step gives different bits{_named(runner, done, step)}", False, all(gone), any(gone))
    if results[0][2] is None:
        return Again("run again from the same state, the step stays finite: a transient fault, of the hardware or of a race", True, True)
    if step > done.first and _once(runner, done, done.first)[0] != _numbers(done.results[0], None):
        return Again(f"run twice from the same state, step {done.first} gives different bits{_named(runner, done, done.first)}", False, False)
    if hidden and step == done.first:
        return Again("run twice from the same state, the step fails in the same way", True, False)
    return Again("run twice from the same state, the step gives the same bits: deterministic", True, False)


def _named(runner: StepRunner, done: Roll, step: int) -> str:
    ops = _nondeterministic_ops(runner, done, step)
    if ops:
        return f": {', '.join(ops)} has no deterministic implementation"
    return ", and no operator is known for it: suspect code that asks the clock or the system for numbers, a race, or the hardware"


def _once(runner: StepRunner, done: Roll, step: int, *, early: bool = False) -> tuple[str, tuple[int, ...], str | None]:
    """One run of the step: its numbers (or what it raised), the parameters after it, and where it went wrong; `early`: up to the loss."""
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
    """What a step gave, or what it raised instead; `early`: of its losses alone."""
    if raised is not None or result is None:
        return re.sub(r"0x[0-9a-f]+", "", f"{type(raised).__name__}: {raised}")
    return repr(result.losses) if early else f"{result.losses!r} {result.grad_norm!r} {result.bad_grads!r}"


def _nondeterministic_ops(runner: StepRunner, done: Roll, step: int) -> list[str]:
    """Operators that torch itself says have no deterministic implementation, met while the step runs once more."""
    before, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            _once(runner, done, step)
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
    names = [re.match(r"(\S+) does not have a deterministic implementation", str(w.message)) for w in caught]
    return sorted({m.group(1) for m in names if m})
