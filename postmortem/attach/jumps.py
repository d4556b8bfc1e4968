"""A jump of the loss to a finite value: from which loss on it is one, as the log shows it, and when a rerun has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postmortem.core.view import View
    from postmortem.replay.roll.sought import Sought

_BEFORE = 15  # logged losses that make the level
_CLEARLY = 1.2  # of the largest of these, at least


@dataclass
class Jump:
    """A loss above `above` is a jump, once one of at most `below` was seen: the first losses of a training are high."""

    above: float
    below: float
    calm: bool = False

    def at(self, loss: float) -> bool:
        """Whether this loss is the jump."""
        if self.calm:
            return math.isfinite(loss) and loss > self.above
        self.calm = loss <= self.below
        return False


def jump_of(view: View, sought: Sought) -> Jump | None:
    """From which loss on a rerun has the jump of a finding; None for other findings, and where the log has it earlier
    as well."""
    series = view.main("loss")
    if series is None or sought.kind != "spike" or sought.gradient:
        return None
    steps, values = series.finite.step.tolist(), series.finite.value.tolist()
    index = next((i for i, step in enumerate(steps) if step == sought.step), 0)
    before = values[max(0, index - _BEFORE) : index]
    if not before or values[index] < _CLEARLY * max(before):
        return None
    highest = max(before)
    above = math.sqrt(highest * values[index]) if highest > 0 else (highest + values[index]) / 2
    jump = Jump(above, highest)
    return None if any(jump.at(value) for value in values[:index]) else Jump(above, highest)
