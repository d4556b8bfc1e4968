"""A loss that jumps at one step although the weights are good: the batch as a whole is at fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.replay.culprit.stages import stage

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=150, of_finding=True)
def bad_batch(case: Investigation) -> Culprit | None:
    """Answers if the batches of calm steps have their usual value at the weights of the step, no particular samples
    carry the jump, and no layer does."""
    course = case.course
    if course is None or course.sought.kind != "spike":
        return None
    step = course.first
    calm = course.at(course.before(step), course.probes(step), gradient=course.sought.gradient)
    if not calm or not max(calm) <= course.limit:
        return None
    value = f"{course.what} of {number(course.value)}, calm batches at most {number(max(calm))}"
    case.trail.append(f"at the same weights the batch of step {step} has a {value}: the batch as a whole")
    found = case.culprit(cause="bad-input", phase="data", established="observed")
    return replace(found, step=step, how=tuple(case.trail))
