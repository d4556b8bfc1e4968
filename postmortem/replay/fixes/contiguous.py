"""Make the tensors that a line reads contiguous."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes import BaseFix, Case, fix
from postmortem.replay.fixes.source_edit import contiguous_line
from postmortem.replay.step.function_mode import StepMode, calling_frame
from postmortem.replay.trace.places import Span, span_of
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit


@fix
class Contiguous(BaseFix):
    """Makes the tensors that a line reads contiguous.

    What it changes: calls on the culprit's line get `x.contiguous()` for each tensor that is not a parameter.

    When it is tried: if the step is finite, but a gradient has other strides than its parameter. DDP then copies the
    gradient and warns.

    What a cure means: with the change the gradient has the strides of its parameter. The culprit is then established as
    "cured", and the changed line is suggested.
    """

    name = "contiguous"
    order = 110
    phases = ("layout",)

    def applies(self, case: Case) -> bool:
        """Where the line is known."""
        return case.found.file is not None and case.found.line is not None

    def attempt(self, case: Case) -> Culprit:
        """Traces the step with contiguous tensors and compares the strides again."""
        found = case.found
        file, line = found.file or "", found.line or 0
        mode = ContiguousAtLine(file, line)
        again = case.reruns.trace(Tracer(look=False), modes=(mode,))
        cured = again.stage is None and found.param not in [name for name, *_ in again.strides]
        agree = "agree" if cured else "still differ"
        case.how.append(f"with the tensors read at line {line} made contiguous, the strides {agree}")
        if not cured:
            return found
        known = case.where.span if case.where else None
        suggestion = contiguous_line(file, known or (mode.met[0] if mode.met else None))
        return replace(found, established="cured", suggestion=suggestion)


class ContiguousAtLine(StepMode):
    """While active, the calls at this file and line get contiguous tensors; parameters stay unchanged.

    met: the spans of the calls that were changed.
    """

    def __init__(self, file: str, line: int) -> None:
        super().__init__()
        self.file, self.line = file, line
        self.met: list[Span | None] = []

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The call with contiguous tensors in place of `args`."""
        tensors = [a for a in args if isinstance(a, torch.Tensor) and not isinstance(a, torch.nn.Parameter)]
        if all(a.is_contiguous() for a in tensors):
            return func, args, kwargs
        frame = calling_frame(self.file, self.line)
        if frame is not None:
            span = span_of(frame.f_code, frame.f_lasti)
            self.met += [span] if span not in self.met else []
            args = tuple(a.contiguous() if type(a) is torch.Tensor else a for a in args)
        return func, args, kwargs
