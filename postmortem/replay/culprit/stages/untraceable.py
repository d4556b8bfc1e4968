"""Traces the step; one that does not fail under the tracer cannot be explained by its operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.errors import ReplayError
from postmortem.replay.culprit.stages import stage

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=40)
def untraceable(case: Investigation) -> Culprit | None:
    """Answers if the step does not fail while it is traced. Otherwise keeps the trace for the later stages."""
    for _ in range(case.reruns.luck.times):
        traced = case.trace()
        if traced.stage is not None:
            break
    else:
        return _finite_when_traced(case, traced.unseen)
    case.traced = traced
    if traced.raised is not None:
        case.trail.append(f"the step{traced.raised.said}")
    return None


def _finite_when_traced(case: Investigation, unseen: str) -> Culprit:
    if case.failure.raised is not None:
        raise ReplayError(f"step {case.step}{case.failure.raised.said}")
    if unseen:
        case.trail.append(f"the step fails, but its operators could not be traced: {unseen}")
        return case.culprit(cause="none", phase="none", established="inferred")
    if case.reruns.finite_again():
        rerun = "rerun from the same state with the same random numbers, the step is finite"
        case.trail.append(f"{rerun}: nondeterministic code or a hardware fault")
        return case.culprit(cause="transient", phase="none", established="observed")
    case.trail.append("the step fails, but not while its operators are traced")
    return case.culprit(cause="none", phase="none", established="inferred")
