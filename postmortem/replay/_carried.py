"""A fault that an earlier step left behind in what the step keeps (a Python number, a tensor in an attribute, a teacher), while loss,
gradients and parameters were still finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay._session import Session, Traced
from postmortem.replay._tensors import NAN, POS, exact_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.replay.rolling import Roll

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
    for step in range(roll.first, firsts[-1] + 1):
        if step in firsts:
            states[step] = runner.snapshot()
        if step < firsts[-1]:
            runner.run(runner.draw(step), step)
    for first in reversed(firsts):
        longer = Session(runner, states[first], session.batch, session.step, lead=range(first, session.step))
        again = retrace(longer)
        if again.stage == traced.stage and not _unseen(again, session, roll):
            return longer, again
    return None


def _unseen(traced: Traced, session: Session, roll: Roll) -> bool:
    """Whether what is not finite came out of something that the step keeps: a tensor of its own, a buffer that was finite
    when the roll began, a Python number. (-inf among other origins is a mask.)"""
    births = traced.tracer.births(traced.sources)
    session.runner.restore(roll.start)
    finite = {name for name, t in session.state_tensors().items() if name in traced.buffers and not exact_bits(t)}
    found = []
    for b in births:
        if b.outside is not None:
            kind, name = traced.known.get(-b.outside, ("", ""))
            if not kind or (kind == "parameter" and name in finite):
                found.append(b)
        elif b.hit.constants and not b.hit.backward:
            found.append(b)
    return any(b.bits & (NAN | POS) and not b.constant for b in found) or 0 < len(found) == len(births)
