"""A step whose values are all finite: is there a gradient with other strides than its parameter?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.replay.culprit.investigation import code_at, owner
from postmortem.replay.culprit.stages import stage
from postmortem.replay.fixes import Case, try_fixes
from postmortem.replay.trace.operators import canonical
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


@stage(order=20)
def layout(case: Investigation) -> Culprit | None:
    """Answers for every finite step: with the gradient whose strides differ if there is one, else with no culprit."""
    if case.step is not None:
        return None
    traced = case.trace()
    if traced.stage is not None or not traced.strides:
        message = "every loss, gradient and parameter is finite"
        return case.culprit(cause="none", phase="none", how=(message,), established="observed")
    name, grad, own, source = traced.strides[0]
    op, where = case.reruns.trace(Tracer(origin_of=source)).origin
    file, line = (where.file, where.line) if where.file else (None, None)
    strides = "a gradient of the backward pass has other strides than its parameter (DDP copies it and warns)"
    case.trail.append(f"all values are finite; {strides}")
    found = case.culprit(
        cause="layout",
        phase="layout",
        module=owner(name),
        op=canonical(op) if op else None,
        file=file,
        line=line,
        code=code_at(file, line),
        param=name,
        step=case.last,
        tensor={"grad_strides": list(grad), "param_strides": list(own)},
        established="observed",
    )
    tried = Case(found, case.reruns, case.samples, None, case.trail, where=where)
    try_fixes(tried)
    return replace(tried.found, how=tuple(case.trail))
