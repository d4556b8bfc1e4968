"""Modes that intercept calls of torch functions while a step runs, in its backward pass as well."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from postmortem.replay.trace.places import user_frame

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self

_METHOD, _FUNCTION = torch.Tensor.backward, torch.autograd.backward


class StepMode(TorchFunctionMode):
    """Calls `change(function, args, kwargs)` for every torch function, and then the function with what that returned.

    A mode is off inside the functions that it intercepts. `backward` is run with it on, so that hooks, custom Functions
    and recomputed blocks are seen, too. For that the mode is entered again during each backward pass of the step that
    it was entered for: state that `__enter__` sets up must not be lost then. A mode is also used for several reruns.
    """

    met: Any = None
    """What the mode met in the step, as plain data: of a rerun in another process it is handed back."""

    if TYPE_CHECKING:  # torch does not annotate them

        def __enter__(self) -> Self: ...

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """(function, args, kwargs) to call instead."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _METHOD and not any(kwargs.values()):
            with self:
                return torch.autograd.backward(*args)  # looked up here: who watches backward passes replaces it
        if func in (_FUNCTION, torch.autograd.backward) and not any(kwargs.values()):
            with self:
                return _backward(*args)
        func, args, kwargs = self.change(func, args, kwargs)
        return func(*args, **kwargs)


def _backward(outputs: Any, gradients: Any = None) -> None:
    """`torch.autograd.backward`, by the engine itself: the public function would be intercepted again."""
    of = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    if gradients is None:
        gradients = (torch.ones_like(of[0]),)
    given = (gradients,) if isinstance(gradients, torch.Tensor) else tuple(gradients)
    _engine_run_backward(of, given, False, False, (), allow_unreachable=True, accumulate_grad=True)


def calling_frame(file: str, line: int) -> FrameType | None:
    """For `StepMode.change`: the frame of the user's code that makes the call, None if it is at another line."""
    frame = user_frame(sys._getframe(2))
    return frame if frame is not None and frame.f_lineno == line and frame.f_code.co_filename == file else None
