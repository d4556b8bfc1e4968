"""What the training costs: the time of the parts of a step, the memory of what it keeps, types, devices and seeds."""

from __future__ import annotations

import functools
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Held, Kept, Took

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.silent.observe.recorder import Recorder

_BEGIN, _END = 3, 60
"""The steps whose time is measured: the first ones allocate and compile."""
_WEIGHED = 2
"""The step at which memory is measured: the optimizer has its state then."""
_NODES = 20_000
_PARTS = ("data", "forward", "backward", "between", "optimizer")


@watcher
class Costs(Watcher):
    """Took, Kept, Held."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._spent: list[dict[str, float]] = []
        """By step."""
        self._last: float | None = None
        self._waited = 0.0
        self._activations = 0
        self._device = False
        self._measure_waiting()

    def _measure_waiting(self) -> None:
        readers: Any = _BaseDataLoaderIter
        giving = readers.__next__
        recorder = self.recorder

        @functools.wraps(giving)
        def __next__(reader: Any) -> Any:  # noqa: N807
            began = recorder.clock()
            try:
                return giving(reader)
            finally:
                self._waited += recorder.clock() - began

        readers.__next__ = __next__

    # ---- time

    def _ended(self, part: str) -> None:
        now = self.recorder.clock()
        index = self.recorder.steps - _BEGIN
        if self._last is not None and 0 <= index < _END:
            self._spent += [dict.fromkeys(_PARTS, 0.0) for _ in range(index + 1 - len(self._spent))]
            took, waited = now - self._last, 0.0
            if part == "forward":
                waited = min(self._waited, took)
            self._spent[index]["data"] += waited
            self._spent[index][part] += took - waited
        self._last, self._waited = now, 0.0

    def before_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._ended("forward")
        self._device = self._device or any(t.device.type != "cpu" for t in tensors)
        if self.recorder.steps == _WEIGHED:
            self._activations = max(self._activations, _saved([t.grad_fn for t in tensors if t.grad_fn is not None]))

    def after_backward(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._ended("backward")

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._ended("between")

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._ended("optimizer")
        if self.recorder.steps == _WEIGHED:
            self._weigh(optimizer)

    # ---- memory

    def _weigh(self, optimizer: torch.optim.Optimizer) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in held if p.grad is not None]
        state = [v for each in optimizer.state.values() for v in _tensors(each)]
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        name = type(optimizer).__name__
        sizes = (_bytes(held), _bytes(gradients), _bytes(state), self._activations)
        self.recorder.add(Kept(name, *sizes, peak))
        kinds = Counter((str(p.dtype).removeprefix("torch."), str(p.device)) for p in held)
        self.recorder.add(Held(name, [[dtype, device, count] for (dtype, device), count in kinds.items()]))

    def end(self) -> None:
        if len(self._spent) > 1:
            parts = {part: median(step[part] for step in self._spent) for part in _PARTS}
            rounded = {part: float(f"{seconds:.4g}") for part, seconds in parts.items()}
            self.recorder.add(Took(len(self._spent), rounded, self._device))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of tensors that have memory, each of it once."""
    found = {}
    for tensor in tensors:
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    values = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else [state]
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple)):
            yield from _tensors(value)


def _saved(roots: list[Any]) -> int:
    """Bytes that the graph keeps for the backward pass, without those of its leaves."""
    seen, waiting = set(roots), list(roots)
    saved: list[torch.Tensor] = []
    leaves: list[torch.Tensor] = []
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for name in dir(node):
            value = getattr(node, name, None) if name.startswith("_saved_") else None
            saved += [value] if isinstance(value, torch.Tensor) else _tensors(value) if isinstance(value, tuple) else []
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return max(0, _bytes([*saved, *leaves]) - _bytes(leaves))
