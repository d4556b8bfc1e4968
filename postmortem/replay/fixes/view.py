"""Take a view where a line only moves dimensions of size 1."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes import BaseFix, Case, fix
from postmortem.replay.fixes.source_edit import view_line
from postmortem.replay.step.function_mode import StepMode, calling_frame
from postmortem.replay.trace.places import Span, span_of, user_frame
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Collection

    from postmortem.core.culprit import Culprit

_MOVES = {"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "numpy_t", "adjoint"}


@fix
class View(BaseFix):
    """Replaces a permutation that only moves dimensions of size 1 by a view of the new shape.

    What it changes: `w.permute(0, 2, 3, 1)` and the like on the culprit's line become `w.view(64, 3, 3, 1)`, which is
    the same tensor if only dimensions of size 1 change their place. The gradient of a view has the strides of its
    argument, that of a permutation is permuted back.

    When it is tried: if the step is finite, but a gradient has other strides than its parameter. DDP then warns.

    What a cure means: with the change the gradient has the strides of its parameter. The culprit is then established as
    "cured", and the changed line is suggested.
    """

    name = "view"
    order = 105
    phases = ("layout",)

    def applies(self, case: Case) -> bool:
        """Where the line is known."""
        return case.found.file is not None and case.found.line is not None

    def attempt(self, case: Case) -> Culprit:
        """Traces the step with views and compares the strides again."""
        found = case.found
        mode = ViewAtLine([(found.file or "", found.line or 0)])
        again = case.reruns.trace(Tracer(look=False), modes=(mode,))
        if not mode.met:
            return found
        cured = again.stage is None and found.param not in [name for name, *_ in again.strides]
        agree = "agree" if cured else "still differ"
        case.how.append(f"with a view in place of the permutation at line {found.line}, the strides {agree}")
        if not cured:
            return found
        _, file, span, shape = mode.met[0]
        return replace(found, established="cured", suggestion=view_line(file, span, shape))


class ViewAtLine(StepMode):
    """While active, calls at these places (file, line) that move dimensions of size 1 only take a view instead.

    met: (place, file, span of the call or None, shape of the view) of each call that was changed, once.
    """

    def __init__(self, places: Collection[tuple[str, int]]) -> None:
        super().__init__()
        self.places = tuple(places)
        self.met: list[tuple[tuple[str, int], str, Span | None, tuple[int, ...]]] = []

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """A view in place of a permutation."""
        if getattr(func, "__name__", "").lower() not in _MOVES or not args or not isinstance(args[0], torch.Tensor):
            return func, args, kwargs
        here = None
        for place in self.places:  # no generator: `calling_frame` counts the frames
            here = place if calling_frame(*place) is not None else here
        if here is None or not args[0].is_contiguous():
            return func, args, kwargs
        moved = func(*args, **kwargs)
        same = isinstance(moved, torch.Tensor) and moved.shape == args[0].shape
        if not isinstance(moved, torch.Tensor) or same or not moved.is_contiguous():
            return lambda: moved, (), {}
        self._note(here, tuple(moved.shape))
        return torch.Tensor.view, (args[0], moved.shape), {}

    def _note(self, here: tuple[str, int], shape: tuple[int, ...]) -> None:
        frame = user_frame(sys._getframe(2))
        span = span_of(frame.f_code, frame.f_lasti) if frame is not None else None
        if all(known[:3] != (here, here[0], span) for known in self.met):
            self.met.append((here, here[0], span, shape))
