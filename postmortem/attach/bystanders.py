"""Who listens after the first fault, for a program that goes on: nothing is examined any more, and the history goes on
only where the update at fault was left out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postmortem.attach.boundaries.current import before_scaling, listener
from postmortem.attach.flags import Tick, gradients, scalar
from postmortem.attach.measure.later import Later
from postmortem.attach.measure.reductions import all_finite
from postmortem.attach.observer import Observer
from postmortem.attach.report import described, rank

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from postmortem.attach.levels.watch import Levels
    from postmortem.attach.report import Report


class Bystander(Observer):
    """Counts the ticks on. leave: called in a process that the program forks. levels: who keeps the history, None where
    none is kept. left_out: the update of the tick at fault, which is under way."""

    def __init__(
        self, leave: Callable[[], None], report: Report, levels: Levels | None, *, left_out: bool = False
    ) -> None:
        self._leave, self._report, self._levels, self._fault = leave, report, levels, listener.ticks
        self._later = Later()
        self._left_out = left_out
        self._losses: list[torch.Tensor] = []
        self._skipped = False

    def in_fork(self) -> Observer:
        """Nobody, as nothing is watched after a fault."""
        self._leave()
        return Observer()

    def skipped_by_the_program(self) -> None:
        """It leaves out an update."""
        self._left_out = True

    def loss(self, loss: torch.Tensor) -> None:
        """For the history."""
        if self._levels is not None:
            self._levels.loss(loss)
            self._losses.append(scalar(before_scaling(loss)))

    def backward_done(self) -> None:
        """For the history."""
        if self._levels is not None:
            self._levels.backward_done()

    def dropping(self, optimizer: torch.optim.Optimizer) -> None:
        """The program may leave out the update at fault without a word."""
        if self._levels is not None and listener.ticks <= self._fault and not self._left_out:
            self._left_out = not all_finite(gradients([optimizer]))

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """For the history."""
        if self._levels is not None:
            self._levels.before_update(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """For the history."""
        self._skipped = skipped
        if self._levels is not None:
            self._levels.after_update(optimizer, skipped)

    def tick(self, number: int) -> None:
        """The history goes on after the tick at fault, or not."""
        levels, losses, self._losses = self._levels, self._losses, []
        left_out, self._left_out = self._left_out, False
        if levels is None:
            return
        if number <= self._fault:
            if left_out:
                levels.wake()
            else:
                self._close()
            return
        skipped = self._skipped or left_out
        levels.tick(number)
        self._later.send(losses, lambda values: levels.told(Tick(number, values, skipped)))
        self._later.look()
        levels.arm()

    def raised(self, error: BaseException) -> None:
        """The history ends."""
        self._close()
        self._report.line("raised", tick=listener.ticks, rank=rank(), time=time.time(), **described(error))

    def end(self) -> None:
        """The history ends."""
        self._close()
        self._report.line("end", ticks=listener.ticks)

    def _close(self) -> None:
        if self._levels is not None:
            self._later.drain()
            self._levels.close()
            self._levels = None


class Skipping(Bystander):
    """Leaves out every further update with non-finite gradients. Those are the same on all ranks; losses are not."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Looked at, in each step."""
        if not all_finite(gradients([optimizer])):
            self._left_out = True
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
        super().before_update(optimizer)
