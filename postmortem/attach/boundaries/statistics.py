"""The persistent buffers of the models that are trained, as running statistics: a training goes on with what is wrong
in them, and an evaluation or a checkpoint shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import torch

from postmortem.attach.boundaries.parameters import trained
from postmortem.attach.measure.reductions import all_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEARCHES = 8
"""At most: a program may make an optimizer in each step, and a search takes some hundredths of a second."""
_SMALL = 1 << 14
"""Elements of a buffer that is looked at each time; a larger one where torch says that it has changed."""


class Statistics:
    """Those that are finite when they are found: a mask may hold infinities."""

    def __init__(self) -> None:
        self._known: list[tuple[ref[torch.nn.Module], str]] = []
        self._seen: dict[int, tuple[int, int]] = {}  # of a large one: which tensor it was, and its version
        self._searches = _SEARCHES
        self.found = False

    def find(self, model: torch.nn.Module | None = None) -> None:
        """Searches the process for the models of all optimizers seen so far, unless there is one that is known."""
        if not self._searches:
            return
        self._searches -= 1
        self.found = True
        before = {(id(module()), name) for module, name in self._known}
        models = trained() if model is None else [model]
        for module in {id(m): m for model in models for m in model.modules()}.values():
            for name, t in module._buffers.items():
                kept = t is not None and name not in module._non_persistent_buffers_set
                if t is not None and kept and (id(module), name) not in before and all_finite([t]):
                    self._known.append((ref(module), name))

    def changed(self) -> list[torch.Tensor]:
        """What may have changed since the last look."""
        if not self.found:
            self.find()
        found = []
        for i, (module, name) in enumerate(self._known):
            t = getattr(module(), "_buffers", {}).get(name)
            if t is None or not t.is_floating_point():
                continue
            if t.numel() > _SMALL:
                before, self._seen[i] = self._seen.get(i), (id(t), t._version)
                if before == self._seen[i]:
                    continue
            found.append(t)
        return found

    def broken(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of these is non-finite. One that is infinite throughout was set back, as a minimum that begins
        anew; it is not looked at any more."""
        if all_finite(tensors):
            return False
        reset = {id(t) for t in tensors if bool(torch.isinf(t).all())}
        if reset:
            self._known = [k for k in self._known if id(getattr(k[0](), "_buffers", {}).get(k[1])) not in reset]
            self._seen.clear()
        return not all_finite(t for t in tensors if id(t) not in reset)
