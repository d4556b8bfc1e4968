"""A failure that does not recur when the step is run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.culprit.stages import stage

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=30)
def transient(case: Investigation) -> Culprit | None:
    """Answers if the failure did not recur. Otherwise sets how many finite reruns count as a cure."""
    if case.failure.again is None:
        return None
    if not case.reported:
        case.trail.append(case.failure.again.message)
    if case.failure.again.transient:
        return case.culprit(cause="transient", phase="none", established="observed")
    case.expect(case.failure.again)
    return None
