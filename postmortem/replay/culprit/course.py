"""The steps of a roll around a jump or a growth of finite values: the level before it, its first step, reruns of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.replay.culprit.calm import calm_limit
from postmortem.replay.rerun.reruns import Reruns
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postmortem.replay.rerun.session import Rolled
    from postmortem.replay.roll.sought import Sought
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.state import State

_LEVEL = 25  # steps that make the level
_PART = 0.3  # of the jump may be left where it counts as cured
_PROBES = 3  # calm batches that are run at other weights


class Course:
    """The steps of a roll whose finding is `sought`.

    first: the first step of the jump or growth in the replay. level, limit: the median of the values before it, and
    the largest value that still counts as calm. Use it only where `of` returned one.
    """

    first: int

    def __init__(self, rolled: Rolled, sought: Sought) -> None:
        self.runner, self.roll, self.sought = rolled.runner, rolled.roll, sought
        self._states: dict[int, State] = {}

    @classmethod
    def of(cls, rolled: Rolled, sought: Sought) -> Course | None:
        """The course of the finding `sought`; None if the replay does not show it."""
        course = cls(rolled, sought)
        return course if course._find() else None

    def values(self) -> list[float]:
        """The values that the finding is about, by step of the roll."""
        return [r.grad_norm if self.sought.gradient else r.loss for r in self.roll.results]

    @property
    def what(self) -> str:
        """What these values are."""
        return "gradient norm" if self.sought.gradient else "loss"

    def _find(self) -> bool:
        values, first = self.values(), self.roll.first
        at = self.sought.step - first
        if at < 1 or at >= len(values):
            return False
        grows = self.sought.kind == "growth"
        begin = max(1, at - self.sought.interval + 1)
        if grows:
            begin = min(begin, max(3, at // 2))
        for i in range(begin, at + 1):
            before = [x for x in values[: begin if grows else i][-_LEVEL:] if math.isfinite(x)]
            if not before:
                return False
            highest = max(values[i : at + 1], key=_size)
            # the finding says that it is a jump: only what counts as calm is to be told from it
            part = max(before) + _PART * max(0.0, highest - max(before))
            limit = min(part, max(calm_limit(before), 3 * max(before)))
            if all(not x <= limit for x in values[i : at + 1 if grows else i + 1]):
                self.first, self.level, self.limit = first + i, statistics.median(before), limit
                return True
        return False

    @property
    def value(self) -> float:
        """The value at the first step of the jump."""
        return self.values()[self.first - self.roll.first]

    def calm(self, until: int | None = None) -> list[StepResult]:
        """The results of the steps before the jump, or before `until`."""
        return self.roll.results[: (self.first if until is None else until) - self.roll.first]

    def before(self, step: int) -> State:
        """The state before `step`, after its batch was drawn. Costs the steps before it, once."""
        if step not in self._states:
            known = [s for s in self._states if s < step]
            begin = max(known, default=self.roll.first)
            if known:
                self.runner.restore(self._states[begin])
            else:
                self.runner.restore(self.roll.start)
                self.runner.draw(begin)
            for s in range(begin, step):
                self.runner.run(self.runner.again(s), s)
                self.runner.draw(s + 1)
            self._states[step] = self.runner.snapshot()
        return self._states[step]

    def reruns(self, step: int) -> Reruns:
        """Reruns of one step."""
        return Reruns(self.runner, replace(self.roll, before=self.before(step)), step)

    def probes(self, until: int) -> list[int]:
        """The last calm steps before `until`, whose batches are run at other weights."""
        return [r.step for r in self.calm(until)][-_PROBES:]

    def at(self, state: State, steps: Sequence[int], *, gradient: bool = False) -> list[float]:
        """The losses, or the gradient norms, of the batches of `steps` at the weights of `state`."""
        found = []
        for step in steps:
            self.runner.restore(state)
            result = self.runner.run(self.runner.again(step), step, until="grad" if gradient else "loss")
            found.append(result.grad_norm if gradient else result.loss)
        return found

    def after(self, step: int, overrides: Overrides = NOTHING) -> float:
        """The largest loss of the calm batches at the weights that the step `step` leaves under `overrides`."""
        self.runner.restore(self.before(step))
        result = self.runner.run(self.runner.again(step), step, overrides=overrides)
        if result.failed:
            return math.inf
        left = self.runner.snapshot()
        return max(self.at(left, self.probes(step)), default=math.nan, key=_size)

    def peak(
        self,
        until: int,
        overrides: Overrides = NOTHING,
        *,
        begin: int,
        each: Callable[[int], None] = lambda step: None,
    ) -> float:
        """The largest value from the first step of the jump to `until`, if the steps from `begin` on are rerun under a
        change.

        each: called before and after each step.
        """
        runner, highest = self.runner, -math.inf
        runner.restore(self.before(begin))
        with runner.under(overrides):
            for step in range(begin, until + 1):
                batch = runner.again(step) if step == begin else runner.draw(step)
                each(step)
                result = runner.run(batch, step)
                each(step)
                value = result.grad_norm if self.sought.gradient else result.loss
                if step >= self.first:
                    highest = max(highest, value if math.isfinite(value) and not result.failed else math.inf)
        return highest


def _size(value: float) -> float:
    return value if math.isfinite(value) else math.inf
