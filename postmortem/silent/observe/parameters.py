"""The parameters, where they were created, and whether they change."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import Changed, ParameterSeen
from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.places import stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.silent.facts import Fact, Stack

_ELEMENTS = 1024
"""So many of a parameter are kept, to see whether it changes."""


class Parameters:
    """Their numbers. A parameter is told of when something uses it. wanted: it is noted where they are made."""

    wanted = True

    def __init__(self, add: Callable[[Fact], None]) -> None:
        self._add = add
        self._numbers = Numbers()
        self._made: dict[int, Stack] = {}
        self._first: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def patch(self) -> None:
        """From now on it is known where parameters are made. Nothing is added to them: they may be saved."""
        kind: Any = torch.nn.Parameter
        making = kind.__new__

        @functools.wraps(making)
        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            parameter = making(cls, *args, **kwargs)
            if self.wanted and not torch.compiler.is_compiling():
                number, new = self._numbers.of(parameter)
                if new:
                    self._made[number] = stack()
            return parameter

        kind.__new__ = __new__

    def met(self, parameter: torch.Tensor) -> int:
        """Its number, without telling of it: its values are not yet those that it starts with."""
        return self._numbers.of(parameter)[0]

    def number(self, parameter: torch.Tensor) -> int:
        """Of this parameter, or leaf of a graph."""
        number, _ = self._numbers.of(parameter)
        if number not in self._first:
            first = _sample(parameter)
            self._first[number] = weakref.ref(parameter), first
            leaf = not isinstance(parameter, torch.nn.Parameter)
            shape, made = tuple(parameter.shape), self._made.pop(number, ())
            zero = first.numel() > 0 and not bool(first.any())
            self._add(ParameterSeen(number, shape, str(parameter.dtype).removeprefix("torch."), made, leaf, zero))
        return number

    def changed(self, step: int) -> None:
        """Tells how far those that live have moved."""
        moved = {}
        for number, (found, first) in self._first.items():
            parameter = found()
            if parameter is not None and first.numel():
                now = _sample(parameter)
                if now.shape == first.shape and now.device == first.device:
                    moved[str(number)] = (now.double() - first.double()).abs().max()
        self._add(Changed(step, {k: float(v) for k, v in moved.items()}))


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Some elements, of all parts of it; none where it has no plain memory (sharded, sparse, complex, on no device)."""
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and parameter.layout == torch.strided
    if not plain or parameter.is_complex() or parameter.device.type == "meta" or not parameter.is_contiguous():
        return torch.empty(0)
    flat = parameter.detach().view(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)].clone()
