"""Losses that the program reads and then skips: `if not math.isfinite(loss.item()): continue`.

Such a step has no backward pass and no update, so that nothing else shows it. A scalar that gradients could flow
through is noted where it is read. At a place where the program reads its loss (a backward pass of such a scalar
followed before), a non-finite one without a backward pass was skipped; so was one at any place where the program ends
before its first tick. Other scalars that are read, as metrics are, may be non-finite.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.boundaries.current import listener

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    Place = tuple[CodeType, int, str]

_NEAR = 64
"""Autograd nodes between the loss that is read and the one whose backward pass runs: a scaling, a division, a sum."""
_MOST = 32
_TORCH = torch.__file__.rpartition("__init__")[0]
_read_item = torch.Tensor.item


@dataclass(slots=True)
class _Readings:
    """`finite`: (place, node) of the finite scalars read since the last backward pass. `of_losses`: places where a loss
    is read. `pending`: the non-finite scalars that were read, by place, the last one last. `warned`: torch had its
    chance to warn. A place is an instruction, and the variable where the program reads a tensor made of it."""

    finite: list[tuple[Place, Any]]
    of_losses: set[Place]
    pending: dict[Place, torch.Tensor]
    warned: bool = False


_readings = _Readings([], set(), {})
_patched: dict[str, tuple[Any, Any]] = {}
"""Name of a method -> (ours, that of torch)."""


def patch_readings() -> None:
    """Notes what the program reads of scalars: `item()`, `float()`, and what its `if` on a tensor is about."""
    kind: Any = torch.Tensor
    for name in ("item", "__float__"):
        before = getattr(kind, name)
        _patched[name] = _noting(before), before
        setattr(kind, name, _patched[name][0])
    truth = kind.__bool__

    @functools.wraps(truth)
    def __bool__(self: Any) -> bool:  # noqa: N807
        value = truth(self)
        if self.dtype == torch.bool and listener.nested == 0:
            _look_around(sys._getframe(1))
        return bool(value)

    kind.__bool__ = __bool__


def pause_readings() -> None:
    """Nothing is noted until `resume_readings`: an optimizer reads a scalar of each parameter in each step."""
    forget_readings()
    for name, (ours, before) in _patched.items():
        if getattr(torch.Tensor, name) is ours:
            setattr(torch.Tensor, name, before)


def resume_readings() -> None:
    """What is read is noted again, unless somebody else has patched torch since."""
    for name, (ours, before) in _patched.items():
        if getattr(torch.Tensor, name) is before:
            setattr(torch.Tensor, name, ours)


def _noting(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(read)
    def reading(self: Any) -> Any:
        if not self.requires_grad:
            return read(self)
        silent = _readings.warned or read is _read_item or not torch.is_grad_enabled()
        value = read(self) if silent else _with_its_warning(read, self, sys._getframe(1))
        if type(value) is float and listener.nested == 0:
            _note(self, value, sys._getframe(1))
        return value

    return reading


def _with_its_warning(read: Callable[[Any], Any], scalar: torch.Tensor, frame: FrameType) -> Any:
    """The first `float()` of a tensor with gradients: torch warns of it once, and means the line that reads."""
    _readings.warned = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = read(scalar)
    for warning in caught:
        at = frame.f_code.co_filename, frame.f_lineno
        warnings.warn_explicit(
            warning.message, warning.category, *at, registry=frame.f_globals.get("__warningregistry__")
        )
    return value


def _look_around(frame: FrameType) -> None:
    """`if torch.isfinite(loss):` reads a tensor that knows nothing of the loss: it is a variable there."""
    if frame.f_code.co_filename.startswith(_TORCH):
        return
    for name, t in list(frame.f_locals.items()):
        if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn is not None and t.numel() == 1:
            _note(t, float(_read_item(t.detach())), frame, name)


def _note(scalar: torch.Tensor, value: float, frame: FrameType, variable: str = "") -> None:
    place = frame.f_code, frame.f_lasti, variable
    now = _readings
    before = now.pending.get(place)
    if before is not None and before is not scalar:
        _leave(place)  # the program is here again, and no backward pass was in between
    if math.isfinite(value):
        if len(now.finite) < _MOST and scalar.grad_fn is not None:
            now.finite.append((place, scalar.grad_fn))
    elif place in now.pending or len(now.pending) < _MOST:
        if now.pending.pop(place, None) is not scalar:
            listener.observer.read(scalar)
        now.pending[place] = scalar


def _leave(place: Place, *, certain: bool = False) -> None:
    """The pending scalar of this place will have no backward pass. `certain`: it was a loss, whatever the place."""
    scalar = _readings.pending.pop(place)
    if certain or place in _readings.of_losses:
        listener.observer.abandoned(scalar)


def settle(tensors: Any) -> None:
    """A backward pass begins at these tensors: what was read of them was a loss."""
    now = _readings
    if not now.finite and not now.pending:
        return
    nodes = _nodes([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
    now.of_losses.update(place for place, node in now.finite if any(node is n for n in nodes))
    now.finite.clear()
    for place in [p for p, scalar in now.pending.items() if any(scalar.grad_fn is n for n in nodes)]:
        del now.pending[place]  # it goes on with it: the backward pass itself is told


def forget_readings() -> None:
    """In a process that the program forked: what was read is told by the one that read it."""
    _readings.finite.clear()
    _readings.pending.clear()


def last_chance() -> None:
    """The program ends: what is pending has no backward pass. Before the first tick no place is known to be one where
    losses are read: the last one was."""
    for number, place in enumerate(reversed(list(_readings.pending))):
        _leave(place, certain=number == 0 and listener.ticks == 0)


def _nodes(tensors: list[Any]) -> list[Any]:
    """The autograd nodes of the tensors and the nearest before them."""
    found: list[Any] = []
    level = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    while level and len(found) < _NEAR:
        found += level
        level = [n for node in level for n, _ in node.next_functions if n is not None]
    return found[: 4 * _NEAR]
