"""The level `extreme`: in some ticks, the largest value in the output of each operator.

A dispatch mode sees every operator of a forward and a backward pass between two ticks. It takes one maximum of each
result, on its device, and changes nothing. It is there in one tick, and then not again before that is paid for.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _get_current_dispatch_mode_stack

from postmortem.attach.boundaries.current import listener

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may mean another thing, or talk to other ranks
_COMPARED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST = 256  # columns


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Smallest and largest value of each operator's results per pass; a NaN among them is both."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ranges: dict[str, list[torch.Tensor]] = {}
        self._thread = threading.get_ident()
        self.listens = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the operator; looks at what it gives."""
        made = func(*args, **(kwargs or {}))
        if self.listens and not listener.stepping and _computes(func):
            for tensor in _tensors(made):
                self._look(func, tensor)
        return made

    def _look(self, func: Any, tensor: torch.Tensor) -> None:
        if tensor.dtype not in _COMPARED or not tensor.numel() or tensor.layout is not torch.strided:
            return
        name = f"absmax/{'backward' if listener.nested else 'forward'}.{func.overloadpacket.__name__}"
        if name in self._ranges or len(self._ranges) < _MOST:
            # on a CPU a norm of this kind takes 20 times as long
            self._ranges.setdefault(name, []).extend(torch.aminmax(tensor.detach()))

    def largest(self) -> dict[str, torch.Tensor]:
        """The largest absolute value by operator and pass; a non-finite one is kept as it is."""
        found = {}
        for name, values in self._ranges.items():
            # an operator may work on several devices; `amax` keeps NaN
            near = [v.to(values[0].device, non_blocking=True) for v in values]
            found[name] = torch.stack(near).abs().amax().double()
        return found

    def leave(self) -> bool:
        """Ends it. False if it lies under another mode, or belongs to another thread: it then only listens no more."""
        self.listens = False
        if self._thread != threading.get_ident() or _get_current_dispatch_mode() is not self:
            return False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True


def may_be_entered() -> bool:
    """Not where code was compiled, which a mode would keep from running, nor while a graph is captured, nor inside a
    mode of the program: its end would end ours."""
    if _get_current_dispatch_mode_stack():
        return False
    counters = getattr(torch._dynamo.utils, "counters", {}) if "_dynamo" in vars(torch) else {}
    if counters and counters["frames"]:
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


@functools.cache
def _computes(func: Any) -> bool:
    """Whether an operator makes values of its own: no view, and no memory that holds nothing yet."""
    if func.namespace != "aten" or func.overloadpacket.__name__.startswith(("empty", "new_empty", "_local_scalar")):
        return False
    return all(r.alias_info is None or r.alias_info.is_write for r in func._schema.returns)


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    for value in made if isinstance(made, (tuple, list)) else (made,):
        if type(value) in _PLAIN:
            yield value
