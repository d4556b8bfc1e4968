"""A fault that an earlier step left in what the step keeps (a Python number, a tensor in an attribute, a teacher),
while loss, gradients and parameters were still finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.culprit.stages import stage
from postmortem.replay.trace.operators import FRESH
from postmortem.replay.trace.tensors import NAN, POS

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.rerun.session import Traced
    from postmortem.replay.trace.records import Origin

_REACH = (1, 8, 64)  # steps to go back, shortest first: each costs a rerun of that many steps


@stage(order=55)
def earlier_step(case: Investigation) -> Culprit | None:
    """Leaves the answer to the later stages.

    Extends the reruns by the steps before, as many as are needed to see where the step's input became non-finite.

    Changes `case.reruns` and `case.traced`; nothing if the step itself made it, or if it was there when the roll began.
    """
    alone, rolled = case.reruns, case.reruns.rolled
    if rolled is None or alone.step == rolled.roll.first or not _unseen(case, case.traced):
        return None
    roll, runner = rolled.roll, rolled.runner
    firsts = sorted({max(roll.first, alone.step - n) for n in _REACH})
    states = {}
    runner.restore(roll.start)
    try:
        for step in range(roll.first, firsts[-1] + 1):
            if step in firsts:
                states[step] = runner.snapshot()
            if step < firsts[-1]:
                runner.run(runner.draw(step), step)
    except Exception:  # noqa: BLE001  (the step was fine before and now raises: it cannot be relied on)
        return None
    for first in reversed(firsts):
        case.reruns = rolled.longer(states[first], range(first, alone.step))
        again = case.trace()
        if again.stage == case.traced.stage and not _unseen(case, again):
            case.traced = again
            return None
    case.reruns = alone
    return None


def _unseen(case: Investigation, traced: Traced) -> bool:
    """True if the non-finite values came out of something that the step keeps: a Python number, numpy, or a tensor,
    buffer or optimizer state that was finite when the roll began. (-inf among other origins is a mask.)"""
    began, before = traced.origins(), case.reruns.bad_before()

    def unseen(b: Origin) -> bool:
        if b.outside is not None:
            return traced.known.get(-b.outside) not in before
        return not b.hit.backward and bool(b.hit.constants or (b.hit.name in FRESH and b.bits & NAN))

    found = [b for b in began if unseen(b)]
    return any(b.bits & (NAN | POS) and not b.constant for b in found) or 0 < len(found) == len(began)
