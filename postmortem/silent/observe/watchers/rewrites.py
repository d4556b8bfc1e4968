"""Parameters that the program itself changes, between two steps of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch as modes
from torch.utils import _pytree as trees

from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.observe.watchers.updates import plain, some
from postmortem.silent.weight_facts import Rewritten

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder


@watcher
class Rewrites(Watcher):
    """Rewritten."""

    order = 2

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._after: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._writes: _Writes | None = None
        recorder.paused.append(lambda paused: self._compared() if paused else None)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.recorder.closely:
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if plain(p)]
        self._after = [(p, some(p).clone()) for p in held]
        self._writes = _Writes(held)
        self._writes.__enter__()  # type: ignore[no-untyped-call]

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], stack: list[torch.nn.Module]) -> None:
        if self._writes is not None:
            self._compared()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._writes is not None:
            self._compared()

    def _compared(self) -> None:
        kept, writes, self._after, self._writes = self._after, self._writes, [], None
        if writes is not None:
            writes.leave()
        for parameter, then in kept:
            now = some(parameter)
            if now.shape != then.shape or now.device != then.device or torch.equal(now, then):
                continue
            before, after, change = (float(t.double().norm()) for t in (then, now, now.double() - then.double()))
            at = writes.lines.get(_memory(parameter)) if writes is not None else None
            number = self.recorder.parameters.number(parameter)
            self.recorder.add(Rewritten(number, self.recorder.steps, before, after, change, at))


class _Writes(modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`lines`: memory of these tensors -> the line that wrote to it last."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of = {_memory(t) for t in tensors}
        self.lines: dict[int, Place | None] = {}

    def leave(self) -> None:
        """Unless the program has begun a mode of its own since: then this one does no more."""
        self._of = set()
        if modes._get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._of and function._schema.is_mutable:
            given = [t for t in trees.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            written = {_memory(t) for t in given if type(t) in (torch.Tensor, torch.nn.Parameter)} & self._of
            if written:
                self.lines |= dict.fromkeys(written, place())
        return function(*args, **(kwargs or {}))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
