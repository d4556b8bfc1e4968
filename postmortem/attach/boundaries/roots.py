"""The modules that the program calls directly, under the names of its own variables.

Module hooks change what a compiled program does, so they are there only while something is examined.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch.nn.modules import module as module_hooks

from postmortem.attach.boundaries.current import listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_roots: WeakValueDictionary[str, torch.nn.Module] = WeakValueDictionary()
_TORCH = torch.__file__.rpartition("__init__")[0]
_OWN = __file__.rpartition("boundaries")[0]


def roots() -> dict[str, torch.nn.Module]:
    """Name -> module of all that were called at depth 0 while they were watched, in the order of their first call."""
    return dict(_roots)


@contextmanager
def watch_roots() -> Iterator[None]:
    """Tells the observer of every module that no other module calls, and collects them."""
    thread = threading.get_ident()
    stack: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() != thread:
            return
        if not stack:
            name = _named(module)
            listener.observer.forward(module, name)
        stack.append(module)

    def leave(module: torch.nn.Module, *_: Any) -> None:
        while stack and threading.get_ident() == thread and stack.pop() is not module:
            pass

    handles: list[Any] = [
        module_hooks.register_module_forward_pre_hook(enter),
        module_hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _named(module: torch.nn.Module) -> str:
    """The name of a root, which is looked up at its first call."""
    for name, known in _roots.items():
        if known is module:
            return name
    name = _variable(module, sys._getframe(2)) or type(module).__name__
    taken = _roots.get(name)
    if taken is not None:
        name = next(f"{name}{i}" for i in range(2, len(_roots) + 3) if f"{name}{i}" not in _roots)
    _roots[name] = module
    return name


def _variable(module: torch.nn.Module, frame: FrameType | None) -> str | None:
    """The innermost variable, or attribute of `self`, of the callers that is this module."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_TORCH, _OWN)):
            names = [n for n, v in frame.f_locals.items() if v is module and n != "self"]
            names += [n for n, v in frame.f_globals.items() if v is module] if not names else []
            if names:
                return names[0]
            if (found := _attribute(module, frame.f_locals.get("self"))) is not None:
                return found
        frame = frame.f_back
    return None


def _attribute(module: torch.nn.Module, owner: Any) -> str | None:
    if isinstance(owner, torch.nn.Module):
        return next((n for n, m in owner.named_modules() if m is module and n), None)
    return next((n for n, v in getattr(owner, "__dict__", {}).items() if v is module), None)
