"""A loss or gradient norm that is finite and far above its level: which samples of the batch carry it, by attempts with
others there."""

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
_LEFT = 0.3  # of a jump may be left where it counts as gone
_PART = 4  # of a batch at most one in so many samples carries a jump: more of them rise where the weights are damaged
_PAIR = 2  # samples may do so in any batch of twice as many
JUMPS = ("jump", "gradient-jump")
"""The kinds of faults that are one."""


def jumped(copy: Repeatable, above: float, course: Sequence[float], session: AttemptSession, *, fixes: bool) -> Culprit:
    """What carries the value of the tick above `above`. course: those of the ticks before it."""
    jump = _Jump(copy, above, session)
    usual = statistics.median(course[-_LEVEL:]) if course else math.nan
    value, what = jump.value(), jump.what
    key = what.replace(" ", "_")
    before = f"of the steps before it {number(usual)} (median)"
    how = [f"the {what} is {number(value)}, {before}; more than {number(above)} is looked for"]
    if math.isfinite(usual):  # without the samples that carry it little of the jump is left
        # not up to the highest of the values before: where the loss was already rising, samples would hide that
        jump.above = min(above, usual + _LEFT * (value - usual))
    size = session.samples.size
    if size < 2:
        why = session.failure or "no samples were found in the batch"
        return Culprit(cause="none", phase="none", how=(*how, why), established="observed")
    found, said = find_samples(size, (), jump.stays, _BUDGET)
    if found is None or len(found) > max(size // _PART, min(_PAIR, size // 2)):
        some = "no particular samples" if found is None else f"{len(found)} samples, too many to be outliers,"
        many = f"{some} of the {size} in the batch carry it: the whole batch, or the weights at this step"
        return Culprit(cause="none", phase="none", how=(*how, many), established="observed")
    names = ", ".join(map(str, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
    rest = [i for i in range(size) if i not in set(found)]
    without = jump.value(lambda s: s.replace(found, rest))
    cured = math.isfinite(without) and without <= jump.above
    how.append(f"sample{'' if len(found) == 1 else 's'} {names} of {size} carr{'ies' if len(found) == 1 else 'y'} it")
    instead = f"with healthy samples in the place of {names}: {what} {number(without)} instead of {number(value)}"
    how.append(f"{instead} ({said})")
    fix = Fix(name="drop_sample", cured=cured, how=instead, loss=without if cured and what == "loss" else None)
    return Culprit(
        cause="outlier-sample",
        phase="data",
        samples=tuple(found),
        tensor={"samples_in_batch": size, key: value, f"{key}_without": without, f"usual_{key}": usual},
        fixes=(fix,) if fixes else (),
        how=tuple(how),
        established="cured" if cured else "observed",
    )


class _Jump:
    def __init__(self, copy: Repeatable, above: float, session: AttemptSession) -> None:
        self.copy, self.above, self.session = copy, above, session

    def stays(self, make: Make) -> bool | None:
        """Whether the value is still above with the batch that the transform makes; None where it could not be run."""
        value = self.value(make)
        return value > self.above if math.isfinite(value) else None

    @property
    def what(self) -> str:
        """What jumps."""
        return "gradient norm" if self.copy.kind == "gradient-jump" else "loss"

    def value(self, make: Make | None = None) -> float:
        """The loss or gradient norm of the tick, NaN where it could not be run."""
        overrides = Overrides(batch=make(self.session.samples)) if make is not None else Overrides()
        gradient = self.copy.kind == "gradient-jump"
        reply = self.copy.ask(Plan(overrides, until="grad" if gradient else "loss"))
        self.session.failure = reply.failed or self.session.failure
        if gradient:
            return reply.norm if not reply.failed and reply.raised is None else math.nan
        values = _values(reply.losses, self.copy.tick)
        return max(values, default=math.nan) if not reply.failed and reply.raised is None else math.nan


def _values(losses: Collection[tuple[int, Any]], tick: int) -> list[float]:
    return [float.fromhex(value) for at, value in losses if at == tick]
