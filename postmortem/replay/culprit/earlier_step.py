"""A fault that an earlier step left behind in what the step keeps (a Python number, a tensor in an attribute, a teacher), while loss,
gradients and parameters were still finite."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from postmortem.replay.trace.operators import FRESH
from postmortem.replay.trace.tensors import NAN, POS, exact_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.replay.rerun.reruns import Session, Traced
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.trace.records import Birth

_REACH = (1, 8, 64)  # steps to go back; each longer one costs a rerun of so many steps


def from_earlier(session: Session, roll: Roll, traced: Traced, retrace: Callable[[Session], Traced]) -> tuple[Session, Traced] | None:
    """The step rerun together with the steps before it, as many as it takes to see where what it read became non-finite.

    `retrace` traces a session. None where the step itself made it, or where it was there when the roll began.
    """
    runner = session.runner
    if session.step == roll.first or not _unseen(traced, session, roll):
        return None
    firsts = sorted({max(roll.first, session.step - n) for n in _REACH})
    states = {}
    runner.restore(roll.start)
    try:
        for step in range(roll.first, firsts[-1] + 1):
            if step in firsts:
                states[step] = runner.snapshot()
            if step < firsts[-1]:
                runner.run(runner.draw(step), step)
    except Exception:  # noqa: BLE001  (a step that was fine and now raises cannot be relied on; the user's code may raise anything)
        return None
    for first in reversed(firsts):
        longer = copy.copy(session)
        longer.before, longer.lead = states[first], range(first, session.step)
        again = retrace(longer)
        if again.stage == traced.stage and not _unseen(again, session, roll):
            return longer, again
    return None


def _unseen(traced: Traced, session: Session, roll: Roll) -> bool:
    """Whether what is not finite came out of something that the step keeps: a tensor of its own, a buffer or a state of the
    optimizer that was finite when the roll began, a Python number, numpy. (-inf among other origins is a mask.)"""
    births = traced.tracer.births(traced.sources)
    session.runner.restore(roll.start)
    kept = [*(("parameter", name, t) for name, t in session.state_tensors().items()), *(("optimizer", *of) for of in session.optimizer_tensors())]
    before = {("batch", ""), *((kind, name) for kind, name, t in kept if exact_bits(t))}

    def unseen(b: Birth) -> bool:
        if b.outside is not None:
            return traced.known.get(-b.outside) not in before
        return not b.hit.backward and bool(b.hit.constants or (b.hit.name in FRESH and b.bits & NAN))

    found = [b for b in births if unseen(b)]
    return any(b.bits & (NAN | POS) and not b.constant for b in found) or 0 < len(found) == len(births)
