"""A loss that is finite and far above its level: which samples of the batch carry it, by attempts with others there."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from postmortem.attach.standby.plan import Plan
from postmortem.core.culprit import Culprit, Fix
from postmortem.core.printable import number
from postmortem.replay.culprit.group_testing import find_samples
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postmortem.attach.standby.scene import Repeatable
    from postmortem.attach.standby.session import AttemptSession
    from postmortem.replay.culprit.group_testing import Make

_LEVEL = 25  # ticks before it that make the level
_BUDGET = 32.0  # attempts of the whole tick
_SHOWN = 5


def jumped(copy: Repeatable, above: float, course: Sequence[float], session: AttemptSession, *, fixes: bool) -> Culprit:
    """What carries the loss of the tick above `above`. course: the losses of the ticks before it."""
    jump = _Jump(copy, above, session)
    usual = statistics.median(course[-_LEVEL:]) if course else math.nan
    value = jump.loss()
    how = [
        f"the loss is {number(value)}, of the steps before it {number(usual)} (median); more than {number(above)} is"
    ]
    how[0] += " looked for"
    size = session.samples.size
    if size < 2:
        why = session.failure or "no samples were found in the batch"
        return Culprit(cause="none", phase="none", how=(*how, why), established="observed")
    found, said = find_samples(size, (), jump.stays, _BUDGET)
    if found is None or len(found) > size // 2:
        many = (
            f"no particular samples of the {size} in the batch carry it: the whole batch, or the weights at this step"
        )
        return Culprit(cause="none", phase="none", how=(*how, many), established="observed")
    names = ", ".join(map(str, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
    rest = [i for i in range(size) if i not in set(found)]
    without = jump.loss(lambda s: s.replace(found, rest))
    cured = math.isfinite(without) and without <= above
    how.append(f"sample{'' if len(found) == 1 else 's'} {names} of {size} carr{'ies' if len(found) == 1 else 'y'} it")
    instead = f"with healthy samples in the place of {names}: loss {number(without)} instead of {number(value)}"
    how.append(f"{instead} ({said})")
    fix = Fix(name="drop_sample", cured=cured, how=f"{instead}", loss=without if cured else None)
    return Culprit(
        cause="outlier-sample",
        phase="data",
        samples=tuple(found),
        tensor={"samples_in_batch": size, "loss": value, "loss_without": without, "usual_loss": usual},
        fixes=(fix,) if fixes else (),
        how=tuple(how),
        established="cured" if cured else "observed",
    )


class _Jump:
    def __init__(self, copy: Repeatable, above: float, session: AttemptSession) -> None:
        self.copy, self.above, self.session = copy, above, session

    def stays(self, make: Make) -> bool | None:
        """Whether the loss is still above with the batch that the transform makes; None where it could not be run."""
        value = self.loss(make)
        return value > self.above if math.isfinite(value) else None

    def loss(self, make: Make | None = None) -> float:
        """The loss of the tick, NaN where it could not be run."""
        overrides = Overrides(batch=make(self.session.samples)) if make is not None else Overrides()
        reply = self.copy.ask(Plan(overrides, until="loss"))
        self.session.failure = reply.failed or self.session.failure
        values = _values(reply.losses, self.copy.tick)
        return max(values, default=math.nan) if not reply.failed and reply.raised is None else math.nan


def _values(losses: Collection[tuple[int, Any]], tick: int) -> list[float]:
    return [float.fromhex(value) for at, value in losses if at == tick]
