from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from postmortem.silent import changes
from postmortem.silent.facts import Place
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.source import called, source
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Scheduled, SchedulerMade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STEPS = 30
_EPOCHS = {"StepLR", "MultiStepLR", "ExponentialLR"}
"""Schedules that are counted in epochs as a rule: less of a fall is enough."""
_CYCLES = {"CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"}
_FALLS = ((1e-3, 1 / 3, False), (0.02, 0.2, True))
"""(share of the highest rate that is left, by this part of the run, only of schedules counted in epochs)."""


@fault
class SchedulerSteppedPerBatch(BaseFault):
    """A schedule that is meant per epoch is stepped per batch, so the learning rate collapses long before the training
    ends.

    How it is found: the scheduler is stepped as often as the optimizer, and in the first third of the observed steps
    the learning rate falls below 0.1 % of its highest value and stays there (2 % in the first fifth with StepLR,
    MultiStepLR and ExponentialLR); or CosineAnnealingLR goes up and down repeatedly, as it does beyond its T_max.

    Not blamed: schedules that are as long as the run (OneCycleLR, cosine or linear decay over all steps); decay per
    epoch; intended restarts.

    What to do: call `scheduler.step()` once per epoch, or give the schedule its lengths in steps.

    How to confirm: print the learning rate at the end of each epoch.
    """

    code = "TRN031"
    name = "scheduler-stepped-per-batch"
    family = "optimizer-config"
    checks = "the learning rate does not collapse early"
    because_of = ("learning-rate-zero",)
    trial = Trial("the learning rate that the schedule begins with", changes.without_schedule)

    def seen(self, look: Look) -> str:
        return _seen.of(look, SchedulerMade, "scheduler of the learning rate", "schedulers of the learning rate")

    def blames(self, look: Look) -> Iterator[Blame]:
        if look.steps < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} steps were seen")
        for optimizer, steps in look.stepped.items():
            seen = look.rates(optimizer)
            if len(seen) < 2:
                continue
            mine = {s.scheduler: s for s in look.of(SchedulerMade) if s.optimizer == optimizer}
            calls = [s for s in look.of(Scheduled) if s.scheduler in mine]
            each = [s for s in calls if mine[s.scheduler].type not in _CYCLES]
            if calls and len(each) < 0.9 * len(steps):
                continue
            made = mine[each[0].scheduler] if each else None
            begin, end = look.span(optimizer)
            length = end - begin
            how = _fall(seen, begin, length, made.type if made else "") or (made and _goes_round(made, length))
            at = _line(each[0].at, made) if made else _assigned(look, optimizer, len(seen) > 0.8 * len(steps))
            if not how or at is None:
                continue
            yield self.blame(
                at,
                f"{made.type if made else 'the learning rate'} is stepped at each of the optimizer's "
                f"{count(length, 'step')}: {how}",
                confirm="print the learning rate at the end of each epoch",
                highest=max(rate for _, rate in seen),
                last=seen[-1][1],
                steps=length,
            )


def _fall(seen: list[tuple[int, float]], begin: int, steps: int, kind: str) -> str:
    """How the rate collapsed in these steps of its optimizer; "" if it did not."""
    highest = max(rate for _, rate in seen)
    for left, part, counted in _FALLS:
        if counted and kind not in _EPOCHS:
            continue
        since = next((i for i in range(len(seen)) if all(rate <= left * highest for _, rate in seen[i:])), None)
        if since is not None and seen[since][0] - begin <= part * steps and highest > 0:
            return f"the learning rate fell from {highest:.3g} to {seen[since][1]:.3g} by step {seen[since][0]}"
    return ""


def _line(stepped: Place | None, made: SchedulerMade) -> Place | None:
    """Where the program steps the scheduler; where a library does, what tells it to do so in each step, near where the
    scheduler is made, or where it is made."""
    if stepped is not None:
        statement = source(stepped.file).statement_at(stepped.line)
        if statement is None or any(called(n) == "step" for n in ast.walk(statement)):
            return stepped
    if not made.stack:
        return stepped
    at = made.stack[0]
    for node in source(at.file).after(at.line, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            told = isinstance(key, ast.Constant) and key.value == "interval" and isinstance(value, ast.Constant)
            if told and value.value == "step":
                return Place(at.file, value.lineno, at.function)
    return at


def _goes_round(made: SchedulerMade, steps: int) -> str:
    length = made.options.get("T_max", 0)
    if made.type != "CosineAnnealingLR" or not 0 < length * 4 < steps:
        return ""
    return f"with T_max={length} the learning rate goes up and down every {2 * length} steps"


def _assigned(look: Look, optimizer: int, always: bool) -> Place | None:
    """The line that sets the rate by hand at each step: `group["lr"] *= 0.9`."""
    at = next((s.at for s in look.stepped[optimizer] if s.at), None)
    if at is None or not always:
        return None
    nodes = source(at.file).after(0, ast.AugAssign)
    return next((Place(at.file, n.lineno) for n in nodes if _is_rate(n.target)), None)


def _is_rate(node: Any) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "lr"
