"""A step whose values are all finite: is there a gradient with other strides than its parameter?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.replay.culprit.investigation import code_at, owner
from postmortem.replay.culprit.stages import stage
from postmortem.replay.fixes import Case, try_fixes
from postmortem.replay.trace.operators import canonical
from postmortem.replay.trace.places import Where
from postmortem.replay.trace.producers import Producers
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
    op, where = _producer(case, name, source)
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


def _producer(case: Investigation, name: str, source: int) -> tuple[str | None, Where]:
    """The operator that gave the gradient of a parameter its strides, and its place.

    The graph tells which operation on the way to the parameter did that: what wrote the gradient's memory is often the
    operation that reads the result, one line further on. Where the gradient arrived with the right strides, a hook
    replaced it, and what wrote its memory is meant.
    """
    watch = Producers()
    traced = case.reruns.trace(Tracer(origin_of=source), modes=(watch,))
    op, where = traced.origin
    key = next((k for k, (kind, own) in traced.known.items() if (kind, own) == ("parameter", name)), None)
    told = watch.met.get(key) if key is not None else None
    if told is None:
        return op, where
    made, file, line = told
    if (where.file, where.line) == (file, line):
        return op, where
    return made, Where(file, line, owner=where.owner, module=where.module)
