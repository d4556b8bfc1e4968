"""A watch with a limited share of the program's time: it measures its own cost, and pauses when that is exceeded.

What is done in some steps only (parameters, copies, norms, operators) has budgets of its own, which are made to fit.
What is done in every step (a loss is read, a few lines of Python) has none: where a step takes a millisecond, that is
a tenth of it or more. Then whole stretches of steps are left out.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING, Any

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.boundaries.current import listener
from postmortem.attach.flags import Fault, Tick
from postmortem.attach.levels.watch import SHARES
from postmortem.attach.measure.budget import Budget, Laps
from postmortem.attach.measure.reductions import all_finite

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from postmortem.checkpoints.histories import Level

_FITTED = 0.7  # of the budget, for what is done in some steps only
_STRETCH = 16  # ticks that are watched at least, and until they have cost as much as the copy that they begin with
_COMPARED, _ENOUGH = 64, 8
"""So many ticks, at most and at least, tell what a watched one takes longer."""
_PATCHES = 2e-5
"""CPU seconds of each tick, also in a rest, for the functions of torch that are wrapped: as measured, with the 30 calls
of `item()` of an optimizer that steps as many parameters one by one."""
_ALWAYS = 0.027  # what flags and copies may take without a budget
_MEASURED: dict[Level | None, tuple[str, ...]] = {
    None: (),
    "basic": ("rows",),
    "advanced": ("rows", "norms"),
    "extreme": ("rows", "norms", "operators"),
}


def scale(budget: float, level: Level | None) -> float:
    """What the shares have to be multiplied with, so that all of a level together stay below the budget."""
    return _FITTED * budget / (_ALWAYS + sum(SHARES[name] for name in _MEASURED[level]))


class Paced(Agent):
    """The agent, within ``plan["budget"]``: a share of the CPU time of the ticks.

    While it rests nothing is seen. When it wakes it looks at the parameters first: a fault in between is told then,
    without a culprit, as there is no copy from before it.
    """

    def __init__(self, session: Path, plan: dict[str, Any], *more: Any) -> None:
        super().__init__(session, plan, *more)
        self.whole = Budget(plan["budget"])
        self.rested = 0
        self._ticks = Laps()
        self._resting = False
        self._watched = 0
        self._until = 0.0
        self._calm: deque[float] = deque(maxlen=_COMPARED)
        self._busy: deque[float] = deque(maxlen=_COMPARED)
        self._paid = 0.0

    # ---- what every event costs

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Measured."""
        if self._resting:
            return batch
        with self.whole.spend():
            return super().batch(loader, index, batch)

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """Measured."""
        if not self._resting:
            super().no_batch(loader, index, error)

    def loss(self, loss: torch.Tensor) -> None:
        """Measured."""
        if not self._resting:
            with self.whole.spend():
                super().loss(loss)

    def backward_done(self) -> None:
        """Measured."""
        if not self._resting:
            with self.whole.spend():
                super().backward_done()

    def abandoned(self, loss: torch.Tensor) -> None:
        """Measured."""
        if not self._resting:
            with self.whole.spend():
                super().abandoned(loss)

    def dropping(self, optimizer: torch.optim.Optimizer) -> None:
        """Measured."""
        if not self._resting:
            with self.whole.spend():
                super().dropping(optimizer)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Measured. Updates that are to be skipped are looked at in every tick."""
        if not self._resting or self.plan["on_fault"] == "skip":
            with self.whole.spend():
                super().before_update(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Measured."""
        if not self._resting:
            with self.whole.spend():
                super().after_update(optimizer, skipped)

    def tick(self, number: int) -> None:
        """Whether the next tick is watched."""
        took = self._ticks.lap()[0]
        self.whole.spent += self._unseen(took) + _PATCHES
        self.whole.earn(max(0.0, took - (self.whole.spent - self._paid)))  # the share is of the training's own time
        if self._resting:
            self.rested += 1
            if self._levels is not None:
                self._levels.steer()
            if self.whole.due():
                self._wake(number)
        else:
            before = self._burden()
            with self.whole.spend():
                super().tick(number)
            if boundaries.current() is not self:
                return
            burden = self._burden() - before
            self.whole.spent += burden
            self.whole.earned = max(0.0, self.whole.earned - burden)
            self._watched += 1
            if self._watched >= _STRETCH and self.whole.spent >= self._until and not self.whole.due():
                self._rest(number)
        self._ticks.restart()
        self._paid = self.whole.spent

    def _unseen(self, took: float) -> float:
        """CPU seconds that a watched tick takes longer than one in a rest, beyond what was measured: caches that others
        have filled, pages that a copy shares."""
        if self._resting:
            self._calm.append(took)
            return 0.0
        self._busy.append(took - (self.whole.spent - self._paid))
        if len(self._calm) < _ENOUGH or len(self._busy) < _ENOUGH:
            return 0.0
        return max(0.0, statistics.median(self._busy) - statistics.median(self._calm))

    def skipped_by_the_program(self) -> None:
        """As the agent's; in a rest there is nothing that could be examined."""
        if not self._resting:
            super().skipped_by_the_program()

    def raised(self, error: BaseException) -> None:
        """The parameters are looked at now."""
        self._resting = False
        super().raised(error)

    def end(self) -> None:
        """The parameters are looked at now."""
        if self._resting and self._broken():
            self._told(listener.ticks - 1)
            boundaries.current().end()
            return
        super().end()

    # ---- rests

    def _burden(self) -> float:
        """CPU seconds that ticks took longer because of a copy, or of a mode that sees each operator."""
        return self.standby.burden + (self._levels.burden if self._levels is not None else 0.0)

    def _rest(self, number: int) -> None:
        with self.whole.spend():
            if not self.check(Tick(number, [])):
                return
            self.standby.retire()
            if self._levels is not None:
                self._levels.rest()
        self._resting = True

    def _wake(self, number: int) -> None:
        before = self.whole.spent
        with self.whole.spend():
            if self._broken():
                self._told(number)
                return
            if self.statistics.broken(self.statistics.changed()):
                self._tell(Fault(number, "buffer"), Tick(number, []))
                return
            self._resting, self._watched = False, 0
            self.laps.restart()
            if self._levels is not None:
                self._levels.wake()
            self._sleep(number)
        self._until = 2 * self.whole.spent - before

    def _broken(self) -> bool:
        groups = (group for o in listener.stepped for group in o.param_groups)
        return not all_finite(p for group in groups for p in group["params"])

    def _told(self, number: int) -> None:
        self._tell(Fault(number, "parameter"), Tick(number, []))
