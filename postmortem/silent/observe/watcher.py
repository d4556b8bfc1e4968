"""The base class of watchers, with the methods that the patches of torch call."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.observe.recorder import Recorder


_wrapped: list[tuple[Any, str, Any, Any]] = []
"""(owner, name, the function itself, what stands in its place)."""


class Watcher:
    """Told of what the program does, as long as `recorder.looking`; every method does nothing by default.

    They run without gradients. One that raises is told nothing any more, with a note. What is marked with "always" is
    told between looks as well, so it has to be cheap. For other functions of torch call `wrap` in `__init__`.
    """

    order = 0
    guard: Callable[..., None]
    """guard(function, *args) calls it as the events are told: without gradients, never nested, a fault ends this
    watcher only. Set when the observation begins."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def wrap(self, owner: Any, name: str, told: Callable[..., None], *, always: bool = False) -> None:
        """Lets `told(args, kwargs, result)` be called after each call of `owner.name`, while the recorder is looking.

        Between looks as well with `always`. The function itself, what it returns and raises stay as they are.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            recorder = self.recorder
            # is_compiling first: a graph that depends on the recorder would be compiled again for every look
            if not torch.compiler.is_compiling() and (recorder.looking or (always and not recorder.over)):
                self.guard(told, args, kwargs, result)
            return result

        if inspect.ismodule(owner):  # so that a model that holds the function can be saved
            wrapped.__module__, wrapped.__qualname__ = owner.__name__, name
        if not _wrapped:
            _scripts_see_the_originals()
        _wrapped.append((owner, name, original, wrapped))
        setattr(owner, name, wrapped)

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """Always. Its groups are known."""

    def clearing(self, owner: torch.optim.Optimizer | torch.nn.Module) -> None:
        """zero_grad of an optimizer or a module is about to clear."""

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """A backward pass begins at these tensors."""

    def after_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """It has ended."""

    def derived(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """torch.autograd.grad was called for the gradients of these tensors."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are final."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters are updated; `recorder.steps` still counts without this step."""

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], stack: list[torch.nn.Module]) -> None:
        """A module is called. `stack`: the modules whose forward runs, the outermost first, this one at the end."""

    def left(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any, stack: list[torch.nn.Module]) -> None:
        """Its forward has ended; `stack` as in `entered`."""

    def end(self) -> None:
        """Once: the program ends, or enough was seen."""


def _scripts_see_the_originals() -> None:
    """TorchScript compiles the functions that a script calls from their source, which a wrapper does not have."""
    jit: Any = torch.jit
    scripting, inside = jit.script, False

    @functools.wraps(scripting)
    def script(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        up = {"_frames_up": kwargs.pop("_frames_up", 0) + 1}
        if inside:  # it calls itself for what the script calls
            return scripting(*args, **up, **kwargs)
        for owner, name, original, _ in reversed(_wrapped):
            setattr(owner, name, original)
        inside = True
        try:
            return scripting(*args, **up, **kwargs)
        finally:
            inside = False
            for owner, name, _, wrapped in _wrapped:
                setattr(owner, name, wrapped)

    jit.script = script
