"""Evaluations between observed steps: some of what runs while gradients are disabled is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.silent.observe.places import place
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.observe.recorder import Recorder

_SPACING = 1.1
"""From one look at a line to the next one the number of steps grows by this factor."""
_FORWARDS = 12


@watcher
class Evaluations(Watcher):
    """No facts of its own."""

    order = 100  # after all that are told of the forward that ends a look

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._next: dict[Place | None, float] = {}
        self._context: Any = None
        self._left = 0
        for kind in (torch.no_grad, torch.inference_mode):
            self.wrap(kind, "__enter__", self._begins, always=True)
            self.wrap(kind, "__exit__", self._ends, always=True)

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.recorder.looking:
            return
        at, steps = place(), self.recorder.steps
        if steps >= self._next.get(at, 0):
            self._next[at] = max(steps + 1, steps * _SPACING)
            self._context, self._left = args[0], _FORWARDS
            self.recorder.peek(True)

    def _ends(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if args[0] is self._context:
            self._stop()

    def left(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any, running: list[torch.nn.Module]) -> None:
        if self._context is not None and len(running) == 1:
            self._left -= 1
            if not self._left:
                self._stop()

    def _stop(self) -> None:
        self._context = None
        self.recorder.peek(False)
