"""A loss scale that makes the scaled gradients overflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.culprit.stages import stage
from postmortem.replay.rerun.candidates import candidates
from postmortem.replay.step.overrides import Overrides
from postmortem.replay.trace.operators import canonical

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=50)
def loss_scale(case: Investigation) -> Culprit | None:
    """Answers if the gradients of a step with a scaler are finite with a loss scale of 1."""
    overflow = case.failure.overflow or (case.stage == "grad" and case.reruns.scaled)
    if not overflow or case.reruns.fails(Overrides(loss_scale=1.0)) is not False:
        return None
    chosen = candidates(case.traced)
    first = chosen[0] if chosen else None
    case.trail.append(f"with a loss scale of 1 instead of {case.failure.scale:g} the gradients are finite")
    return case.with_fixes(
        {
            "cause": "loss-scale",
            "phase": "scaler",
            "module": first.module if first else None,
            "op": canonical(first.op) if first and first.op else None,
            "param": case.traced.names[0] if case.traced.names else None,
            "established": "cured",
        }
    )
