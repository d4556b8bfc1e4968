"""Predicted classes: the dimension of the argmax over the model's output, and what they are compared with."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.facts import PickCompared, Picked
from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_TOLD = 4
_BIG = 1 << 22


@watcher
class Picks(Watcher):
    """Picked, PickCompared."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._picked = Numbers()
        self._told: Counter[tuple[str, Place | None]] = Counter()
        for owner in (torch, torch.Tensor):
            for name in ("argmax", "max", "eq"):
                self.wrap(owner, name, self._compare if name == "eq" else self._pick)
        self.wrap(torch.Tensor, "__eq__", self._compare)

    def _pick(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if args else kwargs.get("input")
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        index = result if isinstance(result, torch.Tensor) else getattr(result, "indices", None)
        if (
            not isinstance(given, torch.Tensor)
            or type(dim) is not int
            or index is None
            or not given.is_floating_point()
        ):
            return
        number, at = self._picked.of(index)[0], place()
        if self._few("picked", at):
            where = dim % max(1, given.dim())
            self.recorder.add(Picked(number, self.recorder.steps, tuple(given.shape), where, tuple(index.shape), at))

    def _compare(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        sides = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if len(sides) != 2 or not isinstance(result, torch.Tensor) or result.dtype != torch.bool:
            return
        known = [self._known(side) for side in sides]
        if known.count(None) != 1 or result.numel() > _BIG:
            return
        picked = 0 if known[0] is not None else 1
        at = place()
        if self._few("compared", at):
            whole = sides[1 - picked]._base
            shape, other = tuple(sides[picked].shape), tuple(sides[1 - picked].shape)
            base = tuple(whole.shape) if whole is not None and whole.is_contiguous() else ()
            number, step = known[picked] or 0, self.recorder.steps
            self.recorder.add(PickCompared(number, step, shape, other, tuple(result.shape), at, base))

    def _known(self, tensor: torch.Tensor) -> int | None:
        """The number of the choice that a tensor is, or is a view of."""
        number = self._picked.known(tensor)
        return number if number is not None or tensor._base is None else self._picked.known(tensor._base)

    def _few(self, what: str, at: Place | None) -> bool:
        self._told[what, at] += 1
        return self._told[what, at] <= _TOLD
