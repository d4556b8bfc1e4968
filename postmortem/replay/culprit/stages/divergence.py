"""Weights that were driven off over several steps, before any single operator failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.culprit.divergence import diverged, far_off
from postmortem.replay.culprit.stages import stage

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=10)
def divergence(case: Investigation) -> Culprit | None:
    """Answers if the loss left its level and smaller steps keep it there."""
    roll = case.roll
    if case.step is None and not (roll.last - roll.first >= 2 and (case.reported or far_off(roll))):
        return None
    return diverged(case)
