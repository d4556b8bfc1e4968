"""A watch with a limited share of the program's time: it measures its own cost, and pauses when that is exceeded.

What is done in some steps only (parameters, copies, norms, operators) has budgets of its own, which are made to fit.
What is done in every step (a loss is read, a few lines of Python) has none: where a step takes a millisecond, that is
a tenth of it or more. Then whole stretches of steps are left out.

Nothing is begun before it is earned: what it will cost is estimated from the sizes of the parameters before the first
time, and known from the last time after that.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.readings import pause_readings, resume_readings
from postmortem.attach.flags import Fault, Tick
from postmortem.attach.levels.watch import SHARES
from postmortem.attach.measure.budget import Budget, Prepaid, clock
from postmortem.attach.measure.reductions import all_finite

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.checkpoints.histories import Level

_FITTED = 0.7  # of the budget, for what is done in some steps only
_STRETCH = 16  # ticks that are watched, or as many as cost no more than to wake
_OF_A_REST = 0.25  # of its time, for what is done in some steps only: most of it is to be left for the steps themselves
_COMPARED, _ENOUGH = 64, 8
"""So many ticks, at most and at least, tell what a watched one takes longer."""
_OUTLIER = 3.0  # times the median: a tick counts as no more
_PATCHES = 1e-5
"""CPU seconds of each tick, also in a rest, for the functions of torch that are wrapped, as measured."""
_UNLOOKED, _UNLOOKED_SECONDS = 32, 0.1
"""Ticks of a rest without a look at the clock, at most."""
_ALWAYS = 0.027  # what flags and copies may take without a budget
_MEASURED: dict[Level | None, tuple[str, ...]] = {
    None: (),
    "basic": ("rows",),
    "advanced": ("rows", "norms"),
    "extreme": ("rows", "norms", "operators"),
}

_SENSIBLE = 0.5
"""A budget that is worth suggesting."""

_READ, _WRITTEN = 3e-10, 1e-9
"""CPU seconds for each byte that is summed, and for each byte of a page that has to be copied after a fork."""
_FORK, _CALLS = 0.01, 3e-4
"""CPU seconds of a fork of a small process; of what is done for each layer of a small model."""


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
        self.budget = Prepaid(self.budget.share)
        self.whole = Budget(plan["budget"])
        self.rested = 0
        self._resting = False
        self._estimated = False
        self._looked: float | None = None  # by the clock: the last tick after which it was looked at
        self._paid = 0.0  # what was spent then
        self._passed, self._until = 0, 1  # ticks of a rest since the last look at the clock, and at the next one
        self._calm: deque[float] = deque(maxlen=_COMPARED)
        self._busy: deque[float] = deque(maxlen=_COMPARED)
        self._events: deque[float] = deque(maxlen=_ENOUGH)  # what watched ticks have cost
        self._look, self._copy = 0.0, 0.0  # CPU seconds of what is done to wake
        resume_readings()

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
        self._passed += 1
        if self._resting and self._passed < self._until:
            return
        now, ticks = clock(), self._passed
        took = now - self._looked if self._looked is not None else 0.0
        events = self.whole.spent - self._paid
        self.whole.spent += _PATCHES * ticks
        if not self._estimated:
            self._estimate()
        if self._resting:
            self._rest_of(took, ticks)
            needed = self._stretch()
            if self.whole.credit >= needed:
                self._wake(number)
            else:
                self._until = self._ticks_until(needed, took / ticks)
        else:
            before = self._burden()
            with self.whole.spend():
                super().tick(number)
            if boundaries.current() is not self:
                return
            burden = self._burden() - before
            own = max(0.0, took - events - burden)
            self._events.append(self.whole.spent - self._paid)
            self._busy.append(own)
            self.whole.spent += burden + self._unseen()
            self.whole.earn(own)  # the share is of the training's own time
            if took and self.whole.credit < (-2 * (self._look + self._copy) if self._affords_ticks() else 0):
                self._rest(number)
        self._passed, self._paid, self._looked = 0, self.whole.spent, clock()

    def _rest_of(self, took: float, ticks: int) -> None:
        """Ticks that were not watched have taken so long together."""
        self.rested += ticks
        self._calm.append(took / ticks)
        self.whole.earn(took)
        self.budget.earn(_OF_A_REST * took)
        self.standby.rested(_OF_A_REST * took, ticks)
        if self._levels is not None:
            self._levels.earn(_OF_A_REST * took)
            self._levels.steer()

    def _ticks_until(self, needed: float, each: float) -> int:
        """In so many ticks the clock is looked at again: half of those in which this much is earned."""
        income = self.whole.share * each - _PATCHES
        missing = needed - self.whole.credit
        most = min(_UNLOOKED, _UNLOOKED_SECONDS / each) if each > 0 else _UNLOOKED
        return max(1, int(min(most, missing / income / 2 if income > 0 else most)))

    def _unseen(self) -> float:
        """CPU seconds that a watched tick takes longer than one in a rest, beyond what was measured: caches that others
        have filled, pages that a copy shares."""
        if len(self._calm) < _ENOUGH or len(self._busy) < _ENOUGH:
            return 0.0
        return max(0.0, _mean(self._busy) - _mean(self._calm))

    def skipped_by_the_program(self) -> None:
        """As the agent's; in a rest there is nothing that could be examined."""
        if not self._resting:
            super().skipped_by_the_program()

    def raised(self, error: BaseException) -> None:
        """The parameters are looked at now."""
        self._resting = False
        super().raised(error)

    def _without_copy(self) -> str:
        """With what would have to be changed."""
        why = super()._without_copy()
        return f"{why}: {not_paid(self.plan['budget'], self.standby.budget)}" if self._forks() else why

    def end(self) -> None:
        """The parameters are looked at now."""
        resume_readings()
        if self._resting and self._broken():
            self._told(listener.ticks - 1)
            boundaries.current().end()
            return
        super().end()

    # ---- what is going to be paid

    def _sleep(self, tick: int) -> None:
        """Before the first tick nothing is earned."""
        if tick >= 0:
            super()._sleep(tick)

    def _estimate(self) -> None:
        """From sizes, before anything was done for the first time."""
        self._estimated = True
        held = [p for group in self._groups() for p in group["params"]]
        kept = [t for o in listener.stepped for state in o.state.values() for t in _tensors(state)]
        size = sum(p.nbytes for p in held)
        written = 2 * size + sum(t.nbytes for t in kept)  # parameters, gradients, and what the optimizer keeps
        calls = _CALLS * max(1.0, len(held) / 30)
        self._look, self._copy = calls + _READ * size, _FORK + _WRITTEN * written
        self.budget.expected = calls + _READ * size
        self.standby.budget.expected = self._copy
        if self._levels is not None:
            self._levels.expect(
                {"rows": calls, "norms": calls + 6 * _READ * size, "operators": 10 * calls + 3 * _READ * size}
            )

    def _stretch(self) -> float:
        """What it costs to wake, and to watch for some ticks. Where single ticks can be paid, no copy is needed."""
        if self._affords_ticks():
            return 2 * self._look
        waking = self._look + self._copy
        return waking + max(waking, _STRETCH * (_mean(self._events) + self._unseen()) if self._events else 0.0)

    def _affords_ticks(self) -> bool:
        """Whether a watched tick in which nothing dear is done costs less than is left of what a tick earns."""
        if not self._events:
            return False
        return min(self._events) + self._unseen() < (1 - _FITTED) * self.whole.share * _mean(self._busy)

    def _burden(self) -> float:
        """CPU seconds that ticks took longer because of a copy, or of a mode that sees each operator."""
        return self.standby.burden + (self._levels.burden if self._levels is not None else 0.0)

    # ---- rests

    def _rest(self, number: int) -> None:
        with self.whole.spend():
            if not self.check(Tick(number, [])):
                return
            self.standby.retire()
            if self._levels is not None:
                self._levels.rest()
            pause_readings()
        self._resting, self._until = True, 1

    def _wake(self, number: int) -> None:
        before = self.whole.spent
        with self.whole.spend():
            if self._broken():
                self._told(number)
                return
            if self.statistics.broken(self.statistics.changed()):
                self._tell(Fault(number, "buffer"), Tick(number, []))
                return
            resume_readings()
            self._resting = False
            self.laps.restart()
            if self._levels is not None:
                self._levels.wake()
        self._look = (self._look + self.whole.spent - before) / 2
        if not self._affords_ticks():
            with self.whole.spend():
                self._sleep(number)
            self._copy = max(self._copy / 2, self.standby.budget.expected)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for o in listener.stepped for group in o.param_groups]

    def _broken(self) -> bool:
        return not all_finite(p for group in self._groups() for p in group["params"])

    def _told(self, number: int) -> None:
        self._tell(Fault(number, "parameter"), Tick(number, []))


def _tensors(state: Any) -> list[torch.Tensor]:
    return [t for t in state.values() if isinstance(t, torch.Tensor)] if isinstance(state, dict) else []


def _mean(ticks: deque[float]) -> float:
    """Without what single ticks were interrupted for."""
    most = _OUTLIER * statistics.median(ticks)
    return statistics.fmean(min(t, most) for t in ticks)


def not_paid(budget: float, copies: Budget) -> str:
    """Why there is no copy within a budget, and what would bring it forward."""
    begins = f"within a budget of {budget:g}"
    if copies.spent:
        return f"{begins} there is one in some steps only; a larger one has it in more"
    without = "without a budget there is one from the first step on"
    if not copies.earned or math.isinf(copies.expected):
        return f"{begins} none is made before the first step has ended; {without}"
    paid = copies.expected / copies.share
    larger = math.ceil(100 * budget * paid / copies.earned) / 100
    other = f"about budget={larger:g} would have paid it by now, and " if budget < larger < _SENSIBLE else ""
    return (
        f"{begins} the first one, which costs about {copies.expected:.2g} s of CPU time, is made once {paid:.2g} s of "
        f"steps count for it, and {copies.earned:.2g} s did (of steps that are not watched, a quarter counts); "
        f"{other}{without}"
    )
