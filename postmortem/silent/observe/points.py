"""The patches of torch that call the watchers. Installed once, on top of those of `attach.boundaries`."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from postmortem.core.errors import described
from postmortem.silent.observe.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.observe.recorder import Recorder


transforms: Any = torch._C._functorch


class Points:
    """Tells `watchers`, in this order, what happens in the thread that imported torch and in those it starts."""

    def __init__(self, recorder: Recorder, watchers: list[Watcher], note: Callable[[str], None]) -> None:
        self.recorder, self.watchers, self._note = recorder, watchers, note
        self._telling = threading.local()
        self._stack: list[torch.nn.Module] = []
        self._thread = threading.get_ident()
        self._stepping = 0
        self._nested = 0
        self._handles: list[Any] = []
        self._calls: dict[str, list[tuple[Watcher, Callable[..., None]]]] = {}

    def tell(self, event: str, *args: Any) -> None:
        """Calls `event` of every watcher that has it; what they do themselves is not told."""
        calls = self._calls.get(event)
        if calls is None:  # most watchers leave most events to the base class, which does nothing
            having = [each for each in self.watchers if getattr(type(each), event) is not getattr(Watcher, event)]
            calls = self._calls[event] = [(each, getattr(each, event)) for each in having]
        self._quietly(calls, args)

    def _quietly(self, calls: list[tuple[Watcher, Callable[..., None]]], args: tuple[Any, ...]) -> None:
        if getattr(self._telling, "now", False) or transforms.peek_interpreter_stack() is not None:
            return  # within vmap or grad of torch.func tensors have no values of their own
        self._telling.now = True
        self.recorder.watches(True)
        self.recorder.grad = torch.is_grad_enabled()
        try:
            with torch.no_grad():
                for each, function in calls:
                    self._one(each, function, args)
        finally:
            self.recorder.watches(False)
            self._telling.now = False

    def _one(self, each: Watcher, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if each not in self.watchers:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the program
            self.watchers.remove(each)
            self._note(f"{type(each).__name__} stopped observing in {function.__name__}: {described(error)}")

    def _guard_of(self, each: Watcher) -> Callable[..., None]:
        return lambda function, *args: self._quietly([(each, function)], args)

    def _wanted(self) -> bool:
        return self.recorder.looking and not torch.compiler.is_compiling()

    # ---- patches

    def install(self) -> None:
        """Patches torch; only once per process."""
        for each in self.watchers:
            each.guard = self._guard_of(each)
        self._patch_optimizers()
        self._patch_clearing()
        self._patch_backward()
        self._hook_modules(False)
        self.recorder.paused.append(self._hook_modules)
        self.recorder.at_end.append(lambda: self.tell("end"))

    def _patch_optimizers(self) -> None:
        base = torch.optim.Optimizer
        made = base.__init__

        @functools.wraps(made)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            made(optimizer, *args, **kwargs)
            if not self.recorder.over:
                self.tell("optimizer_made", optimizer)

        base.__init__ = __init__  # type: ignore[method-assign,assignment]
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ended)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self._stepping += 1
        if self._stepping > 1 or self.recorder.over:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._before_step(optimizer)
            return None

        @functools.wraps(closure)
        def watched(*given: Any, **named: Any) -> Any:
            depth, self._stepping = self._stepping, 0
            try:
                value = closure(*given, **named)
            finally:
                self._stepping = depth
            self._before_step(optimizer)
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _before_step(self, optimizer: Any) -> None:
        if self._wanted():
            self.tell("before_step", optimizer)

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepping = max(0, self._stepping - 1)
        if self._stepping or self.recorder.over:
            return
        if self._wanted():
            self.tell("after_step", optimizer)
        self.recorder.stepped()

    def _patch_clearing(self) -> None:
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            self._patch_zero_grad(kind)

    def _patch_zero_grad(self, kind: Any) -> None:
        zeroing = kind.zero_grad

        @functools.wraps(zeroing)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            if self._wanted() and not self._stepping:
                self.tell("clearing", owner)
            zeroing(owner, *args, **kwargs)

        kind.zero_grad = zero_grad

    def _patch_backward(self) -> None:
        engine, derive = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(engine)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            whole = self._nested == 0 and self._wanted()
            some = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors) if whole else ()
            if whole:
                self.tell("before_backward", some)
            self._nested += 1
            try:
                engine(tensors, *args, **kwargs)
            finally:
                self._nested -= 1
            if whole:
                self.tell("after_backward", some)

        @functools.wraps(derive)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._wanted():
                some = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
                self.tell("derived", some)
                return derive(outputs, some, *args, **kwargs)
            return derive(outputs, inputs, *args, **kwargs)

        torch.autograd.backward, torch.autograd.grad = backward, grad

    def _hook_modules(self, paused: bool) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack.clear()
        if not paused:
            self._handles = [
                module_hooks.register_module_forward_pre_hook(self._enter),
                module_hooks.register_module_forward_hook(self._leave, always_call=True),
            ]

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread or not self._wanted():
            return
        self._stack.append(module)
        self.tell("entered", module, args, self._stack)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread or not self._wanted():
            return
        while self._stack and self._stack[-1] is not module:  # one that raised
            self._stack.pop()
        if self._stack:
            self.tell("left", module, args, output, self._stack)
        if self._stack:  # a look may have ended
            self._stack.pop()
