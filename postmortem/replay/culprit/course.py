"""The steps of a roll around a jump or a growth of finite values: the level before it, its first step, reruns of it."""

from __future__ import annotations

import math
import statistics
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.replay.rerun.reruns import Reruns
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.roll.sought import Sought
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.state import State

_LEVEL = 25  # steps that make the level
_PROBES = 3  # calm batches that are run at other weights


class Course:
    """The steps of the roll of `case`, whose finding is `sought`.

    first: the first step of the jump or growth in the replay. level, limit: the median of the values before it, and
    the largest value that still counts as calm. Use it only where `of` returned one.
    """

    first: int

    def __init__(self, case: Investigation, sought: Sought) -> None:
        assert case.reruns.rolled is not None
        self.case, self.sought = case, sought
        self.runner, self.roll = case.reruns.rolled.runner, case.reruns.rolled.roll
        self.found = False
        self._states: dict[int, State] = {}

    @classmethod
    def of(cls, case: Investigation) -> Course | None:
        """The course of the case's finding; None if it is of another kind, or the replay does not show it."""
        sought = case.sought
        if sought is None or sought.kind == "still" or case.reruns.rolled is None:
            return None
        if case.course is None:
            course = cls(case, sought)
            course.found = course._find()
            case.course = course
        return case.course if case.course.found else None

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
        begin = max(1, at - self.sought.interval + 1)
        if self.sought.kind == "growth":
            begin = min(begin, max(3, len(values) // 10))
        for i in range(begin, at + 1):
            before = [x for x in values[max(0, i - _LEVEL) : i] if math.isfinite(x)]
            if self.sought.kind == "growth":
                before = [x for x in values[:begin] if math.isfinite(x)]
            if not before:
                return False
            limit = calm_limit(before)
            up = values[i] if math.isfinite(values[i]) else math.inf
            stays = self.sought.kind == "spike" or all(not x <= limit for x in values[i : at + 1])
            if up > limit and stays:
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

    def at(self, state: State, steps: Sequence[int]) -> list[float]:
        """The losses of the batches of `steps` at the weights of `state`."""
        losses = []
        for step in steps:
            self.runner.restore(state)
            losses.append(self.runner.run(self.runner.again(step), step, until="loss").loss)
        return losses

    def after(self, step: int, overrides: Overrides = NOTHING) -> float:
        """The largest loss of the calm batches at the weights that the step `step` leaves under `overrides`."""
        self.runner.restore(self.before(step))
        result = self.runner.run(self.runner.again(step), step, overrides=overrides)
        if result.failed:
            return math.inf
        left = self.runner.snapshot()
        return max(
            self.at(left, self.probes(step)), default=math.nan, key=lambda x: x if math.isfinite(x) else math.inf
        )

    def peak(
        self,
        until: int,
        overrides: Overrides = NOTHING,
        *,
        modes: Sequence[AbstractContextManager[Any]] = (),
        each: Callable[[int], None] = lambda step: None,
    ) -> float:
        """The largest value from the first step of the jump to `until`, if all steps are rerun under a change.

        each: called after a step's batch was drawn, and after the last step.
        """
        runner, highest = self.runner, -math.inf
        runner.restore(self.roll.start)
        with runner.under(overrides), ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            for step in range(self.roll.first, until + 1):
                batch = runner.draw(step)
                each(step)
                result = runner.run(batch, step)
                each(step)
                value = result.grad_norm if self.sought.gradient else result.loss
                if step >= self.first:
                    highest = max(highest, value if math.isfinite(value) and not result.failed else math.inf)
        return highest


def calm_limit(values: Sequence[float]) -> float:
    """The largest value that counts as calm after these: well above all of them."""
    middle = statistics.median(values)
    above = max(values) - middle
    return max(middle + max(3 * above, 0.35 * abs(middle)), max(values) + 1e-12)
