"""Everything that a training step changes: copied, and restored in place.

Restoring writes into the original tensors (parameters and buffers keep their identity and storage), so optimizers, tied
weights and hooks stay valid.
"""

from __future__ import annotations

import copy
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from postmortem.replay.step.rng import Rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.replay.step.python_state import Outside


@dataclass(slots=True)
class _Slot:
    """One parameter or buffer: the tensor object, its storage, and a copy of its values and its gradient."""

    tensor: torch.Tensor
    data: torch.Tensor
    values: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None
    grad_values: torch.Tensor | None

    @classmethod
    def of(cls, t: torch.Tensor) -> _Slot:
        grad = t.grad if t.is_leaf else None
        return cls(
            t, t.data, t.detach().clone(), t.requires_grad, grad, None if grad is None else grad.detach().clone()
        )

    def refill(self) -> bool:
        """Copies the present values into the same memory; False if storage, shape or dtype of the tensor changed."""
        t = self.tensor
        alike = t.shape == self.values.shape and t.dtype == self.values.dtype
        if not alike or t.is_sparse or t.data.data_ptr() != self.data.data_ptr():
            return False
        self.values.copy_(t.detach())
        self.requires_grad = t.requires_grad
        self.grad = t.grad if t.is_leaf else None
        self.grad_values = None if self.grad is None else self.grad.detach().clone()
        return True

    def restore(self) -> None:
        t = self.tensor
        if t.is_leaf:
            t.grad = None
        t.data = self.data
        t.data.copy_(self.values)
        if t.is_leaf:
            t.requires_grad_(self.requires_grad)
            if self.grad is not None and self.grad_values is not None:
                if self.grad.layout == torch.strided:
                    self.grad.data.copy_(self.grad_values)
                    t.grad = self.grad
                else:
                    t.grad = self.grad_values.clone()


_PLAIN = (int, float, bool, str, bytes, complex, type(None), np.generic)


def _is_plain(value: Any, depth: int = 3) -> bool:
    """True for numbers, strings, tensors and shallow containers of them, which can be copied safely."""
    if isinstance(value, torch.Tensor):  # not what trains in a list: it must stay the tensor that the optimizer holds
        return not isinstance(value, torch.nn.Parameter) and not (value.requires_grad and depth < 3)
    if isinstance(value, _PLAIN):
        return True
    if type(value) is np.ndarray:  # subclasses (masked, memory-mapped) are copied in other ways
        return value.size <= _FEW and not value.dtype.hasobject
    if depth and type(value) in (list, tuple, deque, set):
        return len(value) < 10_000 and all(_is_plain(v, depth - 1) for v in value)
    if depth and isinstance(value, dict):
        return len(value) < 10_000 and all(_is_plain(v, depth - 1) for v in value.values())
    return False


_FEW = 10_000


def _is_small(value: Any) -> bool:
    """Plain and small: what a step counts and averages, not a data set."""
    return _is_plain(value) and _elements(value) <= _FEW


def _elements(value: Any) -> int:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.numel() if isinstance(value, torch.Tensor) else value.size
    if isinstance(value, dict):
        return 1 + sum(map(_elements, value.values()))
    return 1 + sum(map(_elements, value)) if isinstance(value, (list, tuple, deque, set)) else 1


def _copy(value: Any) -> Any:
    """A copy of nested containers with every tensor and array cloned and everything else shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    if isinstance(value, (list, deque, set)):
        return type(value)(_copy(v) for v in value)
    if type(value) is tuple:
        return tuple(_copy(v) for v in value)
    return value


# attributes of torch's own, restored in other ways
_OF_MODULES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_OF_OPTIMIZERS = ("state", "param_groups", "defaults")


def _is_attribute(owner: Any, name: str) -> bool:
    """True if this attribute is restored with the plain ones: not torch's own, no hooks, no dunder of a Python
    module."""
    if isinstance(owner, ModuleType):
        return not name.startswith("__")
    if isinstance(owner, torch.nn.Module) and name in _OF_MODULES:
        return False
    return name not in _OF_OPTIMIZERS and "hooks" not in name


class _Attributes:
    """Plain attributes of modules and optimizers (counters, moving averages that are no buffers, training flags), and
    the small ones of what else the step holds."""

    def __init__(self, owners: Iterable[Any], outside: Outside) -> None:
        self._saved = [
            (o, kept, set(vars(o)), {k: (v, _copy(v)) for k, v in vars(o).items() if _is_attribute(o, k) and kept(v)})
            for o, kept in [*((o, _is_plain) for o in owners), *((o, _is_small) for o in outside.objects)]
        ]
        self._drawn = outside.drawn
        self._cells = [(c, v, _copy(v)) for c in outside.cells if _is_small(v := c.cell_contents)]

    def restore(self) -> None:
        for owner, kept, known, saved in self._saved:
            attributes = vars(owner)
            theirs = {name for key, name in self._drawn if key == id(owner)}
            for name in attributes.keys() - known - theirs:
                if _is_attribute(owner, name) and kept(attributes[name]):
                    del attributes[name]
            for name, (original, values) in saved.items():
                if name not in theirs:
                    attributes[name] = _put_back(original, values)
        for cell, original, values in [c for c in self._cells if (id(c[0]), "") not in self._drawn]:
            cell.cell_contents = _put_back(original, values)


def plain_attributes(owner: Any, *, small: bool = False) -> dict[str, Any]:
    """The attributes of a module, or of what else a step holds, that are restored after a rerun; `small`: no data
    sets."""
    kept = _is_small if small else _is_plain
    return {k: v for k, v in vars(owner).items() if _is_attribute(owner, k) and kept(v)}


@contextmanager
def drawing(outside: Outside) -> Iterator[None]:
    """Around the draw of a batch: adds to `outside.drawn` what the draw changes of what the step holds."""
    objects = [(o, {k: _copy(v) for k, v in vars(o).items() if _is_small(v)}) for o in outside.objects]
    cells = [(c, _copy(v)) for c in outside.cells if _is_small(v := c.cell_contents)]
    yield
    for o, values in objects:
        for k, v in vars(o).items():
            if _is_small(v) and not (k in values and _same(values[k], v)):
                outside.drawn.add((id(o), k))
    outside.drawn |= {(id(c), "") for c, value in cells if not _same(value, c.cell_contents)}


def _same(a: Any, b: Any) -> bool:
    """True if nothing changed; NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):  # the copy of a Counter is a plain one
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        parts = list(zip(_parts(a), _parts(b), strict=False))
        alike = a.dtype == b.dtype and len(_parts(a)) == len(_parts(b)) and all(x.shape == y.shape for x, y in parts)
        return alike and all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in parts)
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b or (a != a and b != b))


def _parts(t: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor consists of, which can be compared; none for a tensor without values or of
    another layout."""
    if t.layout == torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    return [t] if t.layout == torch.strided and not t.is_meta and not t.is_nested else []


def _put_back(original: Any, values: Any) -> Any:
    """`original` itself, filled with the saved `values` if it is a tensor or container, so that aliases stay valid."""
    if values is original:  # immutable
        return original
    if isinstance(original, torch.Tensor):
        if (
            original.is_nested
            or original.shape != values.shape
            or original.dtype != values.dtype
            or not original.is_leaf
        ):
            return values.clone()
        with torch.no_grad():
            original.copy_(values)
        return original
    if isinstance(original, np.ndarray) and original.shape == values.shape and original.flags.writeable:
        original[...] = values
        return original
    if isinstance(original, (list, dict, set, deque)):
        fresh = _copy(values)
        original.clear()
        original.extend(fresh) if isinstance(original, (list, deque)) else original.update(fresh)
        return original
    return _copy(values)


class _OptimizerState:
    """State and groups of a torch optimizer, restored into the original tensors."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.native = isinstance(optimizer, torch.optim.Optimizer)
        if not self.native:
            self.saved = copy.deepcopy(optimizer.state_dict())
            return
        self.state = {
            p: {k: (v, _copy(v)) for k, v in s.items()} if isinstance(s, dict) else (s, _copy(s))
            for p, s in optimizer.state.items()
        }
        self.groups = [{k: (v, _copy(v)) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def restore(self) -> None:
        if not self.native:
            self.optimizer.load_state_dict(copy.deepcopy(self.saved))
            return
        self.optimizer.state.clear()
        for p, entries in self.state.items():
            if isinstance(entries, dict):
                self.optimizer.state[p] = {k: _put_back(*v) for k, v in entries.items()}
            else:
                self.optimizer.state[p] = _put_back(*entries)
        for group, saved in zip(self.optimizer.param_groups, self.groups, strict=False):
            for key in [k for k in group if k != "params" and k not in saved]:
                del group[key]
            group.update({k: _put_back(*v) for k, v in saved.items()})


class State:
    """A copy of everything that a step changes: parameters and buffers with their gradients, plain attributes and
    training flags of modules, optimizers, schedulers, the scaler, the random generators, and what the step holds
    besides (`outside`).
    """

    def __init__(
        self,
        models: Iterable[torch.nn.Module],
        optimizers: Iterable[Any],
        schedulers: Iterable[Any],
        scaler: Any,
        outside: Outside,
    ) -> None:
        self._outside = outside
        self._models, self._optimizers, self._schedulers, self._scaler = (
            list(models),
            list(optimizers),
            list(schedulers),
            scaler,
        )
        self._slots: dict[int, _Slot] = {}
        self.refresh()

    def refresh(self) -> None:
        """Copies the present state into the same memory."""
        modules = {id(m): m for model in self._models for m in model.modules()}.values()
        tables: list[dict[str, Any]] = [*(m._parameters for m in modules), *(m._buffers for m in modules)]
        self._owners: list[tuple[dict[str, Any], dict[str, Any]]] = [(table, dict(table)) for table in tables]
        slots: dict[int, _Slot] = {}
        extra = [p for o in self._optimizers for g in getattr(o, "param_groups", ()) for p in g["params"]]
        with torch.no_grad():
            for t in [t for _, entries in self._owners for t in entries.values() if t is not None] + extra:
                slot = self._slots.get(id(t))
                if id(t) not in slots:
                    slots[id(t)] = slot if slot is not None and slot.tensor is t and slot.refill() else _Slot.of(t)
        self._slots = slots
        self._optimizer_states = [_OptimizerState(o) for o in self._optimizers]
        native = [o for o in self._optimizers if isinstance(o, torch.optim.Optimizer)]
        self._attributes = _Attributes([*modules, *native], self._outside)
        self._scheduler_states = [copy.deepcopy(s.state_dict()) for s in self._schedulers]
        self._scaler_state = None if self._scaler is None else copy.deepcopy(self._scaler.state_dict())
        self.rng = Rng.capture(self._outside.generators)

    def restore(self) -> None:
        """Restores the copy in place."""
        with torch.no_grad():
            for owner, entries in self._owners:
                owner.clear()
                owner.update(entries)
            for slot in self._slots.values():
                slot.restore()
        for optimizer in self._optimizer_states:
            optimizer.restore()
        self._attributes.restore()
        for scheduler, saved in zip(self._schedulers, self._scheduler_states, strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))
        if self._scaler is not None:
            self._scaler.load_state_dict(copy.deepcopy(self._scaler_state))
            self._scaler._per_optimizer_states.clear()
        self.rng.restore()
