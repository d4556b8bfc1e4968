"""Set the rows of a softmax that are masked from end to end to 0."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.model import MASKED
from postmortem.replay.fixes import BaseFix, Case, fix
from postmortem.replay.step.function_mode import StepMode, calling_frame

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit

_SOFTMAX = ("softmax", "log_softmax")


@fix
class Unmask(BaseFix):
    """Sets the rows of a softmax that hold only -inf to 0.

    What it changes: before the softmax on the culprit's line, a row in which every value is -inf, as a mask of all
    positions leaves it, becomes a row of zeros. Its weights are then equal, and no gradient reaches what was masked.

    When it is tried: if the culprit is a softmax or log-softmax with such a row, whose result is NaN.

    What a cure means: the mask leaves nothing in these rows: an empty sequence, a padded query, an inverted mask.
    It is told in words, as a line of code depends on what these rows should give.
    """

    name = "unmask"
    order = 110
    phases = ("forward",)

    def applies(self, case: Case) -> bool:
        """Where a row is known to be masked, and the line as well."""
        inputs = case.found.tensor.get("inputs") or ()
        return case.found.file is not None and any(t.get(MASKED) for t in inputs)

    def attempt(self, case: Case) -> Culprit:
        """Reruns the step; the outcome is part of what is said of the tensor."""
        found = case.found
        fails, _ = case.fails(_AtLine(found.file or "", found.line or 0))
        if fails is None:
            return found
        outcome = "fails as well" if fails else "is finite"
        case.how.append(f"with the fully masked rows set to 0 before the softmax, the step {outcome}")
        return replace(found, tensor={**found.tensor, MASKED: "fails" if fails else "finite"})


class _AtLine(StepMode):
    """While active, a softmax at this file and line gets zeros for rows of -inf."""

    def __init__(self, file: str, line: int) -> None:
        super().__init__()
        self.file, self.line = file, line

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The call with other rows, where it is a softmax at the line."""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        known = getattr(func, "__name__", "") in _SOFTMAX and isinstance(dim, int) and bool(args)
        if not known or not isinstance(args[0], torch.Tensor) or calling_frame(self.file, self.line) is None:
            return func, args, kwargs
        masked = (args[0] == float("-inf")).all(dim, keepdim=True)
        return func, (args[0].masked_fill(masked, 0.0), *args[1:]), kwargs
