"""A jump of the loss or the gradient norm to a finite value: from which value on it is one, as the log shows it, and
when a rerun has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.replay.culprit.calm import apart_from

if TYPE_CHECKING:
    from postmortem.core.view import View
    from postmortem.replay.roll.sought import Sought

_BEFORE = 15  # logged losses that make the level
_CLEARLY = 1.2  # of the largest of these, at least


@dataclass
class Jump:
    """A value above `above` is a jump, once one of at most `below` was seen: the first losses of a training are high.

    gradient: of gradient norms, not of losses. earlier: so many jumps come before the one that is meant.
    """

    above: float
    below: float
    gradient: bool = False
    calm: bool = False
    earlier: int = 0

    def at(self, value: float) -> bool:
        """Whether this value is the jump."""
        if self.calm:
            jumps = math.isfinite(value) and value > self.above
            self.earlier -= jumps
            return jumps and self.earlier < 0
        self.calm = value <= self.below
        return False


def jump_of(view: View, sought: Sought) -> Jump | None:
    """From which value on a rerun has the jump of a finding; None for other findings, and where the log, which does not
    show each step, has it earlier as well."""
    series = view.main("grad_norm" if sought.gradient else "loss")
    if series is None or sought.kind != "spike":
        return None
    steps, values = series.finite.step.tolist(), series.finite.value.tolist()
    index = next((i for i, step in enumerate(steps) if step == sought.step), 0)
    before = apart_from(values[max(0, index - _BEFORE) : index], values[index]) if index else []
    if not before or values[index] < _CLEARLY * max(before):
        return None
    highest = max(before)
    above = math.sqrt(highest * values[index]) if highest > 0 else (highest + values[index]) / 2
    jump = Jump(above, highest)
    earlier = sum(map(jump.at, values[:index]))
    return Jump(above, highest, sought.gradient, earlier=earlier) if not earlier or sought.interval == 1 else None
