"""A non-finite value at the end of a growth: the training went wrong before the step at which it arises."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postmortem.attach.growth.explained import explained
from postmortem.attach.steps import matched
from postmortem.core.culprit import Culprit
from postmortem.core.model import GROWTH
from postmortem.core.printable import number
from postmortem.replay.roll.level import leaves_level
from postmortem.replay.roll.sought import Sought, sought_of

if TYPE_CHECKING:
    from postmortem.attach.answers import Process
    from postmortem.attach.growth.runs import Start
    from postmortem.attach.steps import Mapping
    from postmortem.core.culprit import ReplayResult
    from postmortem.core.report import RunReport
    from postmortem.core.view import View

_ADVICE = "lower the learning rate, warm it up, or clip the gradient norm, from before the growth on"


@dataclass(frozen=True)
class GrowthBeforeFault:
    """The loss had left its level before the fault. step: the first that is off its level, counted as in the log or,
    without one, in optimizer steps. first: the first step of the program. usual, last: the loss before `step` and the
    last finite one."""

    step: int
    first: int
    usual: float
    last: float
    steps: int

    @property
    def said(self) -> str:
        """In one sentence."""
        before = f"{number(self.usual)} before, {number(self.last)} in the last finite step"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"the loss had left its level {steps} before the fault, at step {self.step}: {before}"


def growth_before(process: Process, mapping: Mapping | None, view: View | None) -> GrowthBeforeFault | None:
    """The growth of the loss that ends in the fault of a process; None where the loss was at its level.

    The losses before the first step of the program are those of the log.
    """
    if process.fault is None:
        return None
    tick = int(process.fault["tick"])
    passes = mapping.numbered() if mapping is not None else [(p.tick, p) for p in process.passes]
    others = process.others
    own = {step: p.loss for step, p in passes if p.tick < tick and p.tick not in others}
    first = min(own, default=0)
    # of several optimizers, the log's loss may be that of another one
    known = {**_logged(view, first), **own} if mapping is not None and not others else own
    finite = [(step, loss) for step, loss in sorted(known.items()) if math.isfinite(loss)]
    left = leaves_level([loss for _, loss in finite])
    if left is None:
        return None
    step, (_, usual), (_, last) = finite[left][0], finite[left - 1], finite[-1]
    return GrowthBeforeFault(step, first, usual, last, len(finite) - left)


def _logged(view: View | None, before: int) -> dict[int, float]:
    series = view.main("loss") if view is not None else None
    if series is None:
        return {}
    return {int(s): float(v) for s, v in zip(series.step, series.value, strict=True) if s < before}


def told(culprit: Culprit, growth: GrowthBeforeFault) -> Culprit:
    """The culprit of a fault that ends a growth. Which samples overflow first, and that the step is finite without
    them, says nothing then."""
    how = f"{growth.said}; the operator is where the values leave the range"
    fixes = tuple(f for f in culprit.fixes if f.name != "drop_sample")
    tensor = {**culprit.tensor, GROWTH: growth.said}
    return replace(culprit, samples=None, fixes=fixes, how=(*culprit.how, how), tensor=tensor)


def advised(growth: GrowthBeforeFault, again: str | None) -> str:
    """What to do about it. again: the command that tries it."""
    if again is not None:
        return f"{growth.said}: {_ADVICE}; `{again}` tries what keeps the loss at its level"
    if growth.step <= growth.first:
        return f"{growth.said}, before the command begins: name a checkpoint before step {growth.step}, or {_ADVICE}"
    return f"{growth.said}: {_ADVICE}"


def sought(growth: GrowthBeforeFault, report: RunReport | None, view: View | None) -> Sought:
    """What the further runs look for: the divergence that the log shows, where that begins earlier."""
    findings = [f for f in report.findings if f.name == "divergence"] if report is not None else []
    found = sought_of(findings, view.run.roles if view is not None else {}, 1, None)
    if found is not None and growth.first < found.step < growth.step:
        return found
    return Sought(name="divergence", kind="growth", step=growth.step)


def tried(
    result: ReplayResult,
    process: Process,
    view: View | None,
    report: RunReport | None,
    start: Start,
    *,
    fixes: bool,
) -> ReplayResult:
    """The result with what made the loss grow, found by further runs of the command; `result` with a note where nothing
    was found, and unchanged where no growth ends in the fault or the command begins after it did."""
    c = result.culprit
    mapping, _ = matched(view, process.passes, process.rank)
    growth = growth_before(process, mapping, view) if c.phase != "none" else None
    if mapping is None or growth is None or growth.step <= growth.first:
        return result
    nobody = replace(result, culprit=Culprit(cause="none", phase="none", how=c.how, fidelity=result.fidelity))
    found = explained(nobody, process, mapping, sought(growth, report, view), start, fixes=fixes)
    if found.culprit.phase == "none":
        return replace(result, culprit=replace(c, how=found.culprit.how))
    place = f" at {c.file}:{c.line}" if c.file and c.line else ""
    what = f"operator {c.op}{place}" if c.op else f"the {c.phase} phase{place}"
    end = f"the growth ends at step {result.step}: {what} is the first that is not finite"
    tick = min(p.tick for step, p in mapping.numbered() if step == found.step)
    return replace(found, tick=tick, culprit=replace(found.culprit, how=(*found.culprit.how, end)))
