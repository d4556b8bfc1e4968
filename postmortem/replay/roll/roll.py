"""Rolls forward step by step up to the step that fails, and distinguishes a divergence from a single bad step."""

from __future__ import annotations

import math
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import ReplayError
from postmortem.replay.roll.level import ceiling, leaves_level
from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.step.result import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from postmortem.replay.step.runner import StepRunner
    from postmortem.replay.step.state import State


@dataclass(slots=True, kw_only=True)
class Roll:
    """Steps that were run from `first` on, and where they failed.

    fault: the first step with a non-finite loss, gradient or parameter, unless the scaler skipped it. overflow: the
    first of the skipped steps at the end of the roll, if no good step follows them. start: the state before `first`.
    before: the state before the fault, the overflow or, without either, the last step, after its batch was drawn.
    diverged_at: from this step on the loss has left its level for good, by growing over several steps. ended: why the
    roll stopped early. raised: what the step at fault raised; its result then has no losses.
    """

    first: int
    start: State
    results: list[StepResult] = field(default_factory=list)
    fault: int | None = None
    overflow: int | None = None
    before: State
    diverged_at: int | None = None
    ended: str | None = None
    raised: Exception | None = None

    @property
    def last(self) -> int:
        """The last step that was run."""
        return self.results[-1].step if self.results else self.first

    def result(self, step: int) -> StepResult:
        """The result of `step`."""
        return self.results[step - self.first]


def roll(
    runner: StepRunner,
    first: int,
    last: int,
    *,
    watch: Callable[[StepResult], bool | None] | None = None,
    past_fault: bool = False,
) -> Roll:
    """Runs the steps `first`..`last` from the present state up to the first fault (with `past_fault`, all of them).

    watch: called with every result; it ends the roll by returning False. A step that raises ends the roll as its fault
    (`raised`), and so does the end of the batches (`ended`). The runner is left in the state after the last step.
    Raises ReplayError if there is no batch for the first step.
    """
    start = runner.snapshot()
    done = Roll(first=first, start=start, before=start)
    spare: State | None = None  # the memory of `before`, while that holds the start of a row of skipped steps
    for step in range(first, last + 1):
        try:
            batch = runner.draw(step)
        except ReplayError as error:
            if step == first:
                raise
            done.ended = str(error)
            break
        settled = done.fault is not None
        if not settled:
            done.before = runner.snapshot(None if done.before is start else done.before)
        try:
            result = runner.run(batch, step)
        except ReplayError:
            raise
        except Exception as error:  # noqa: BLE001  (the user's code may raise anything, over a NaN for one)
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the step
            done.raised = error
            result = StepResult(step=step, loss=math.nan, losses={}, first_nonfinite="loss")
        done.results.append(result)
        if not settled and result.failed:
            done.fault = step
        if done.fault is None and result.skipped:
            if done.overflow is None:
                done.overflow = step
                done.before, spare = spare if spare is not None else runner.snapshot(), done.before
        elif done.fault is None:
            done.overflow = None
        if (
            done.raised is not None
            or (watch is not None and watch(result) is False)
            or (done.fault is not None and not past_fault)
        ):
            break
    if done.fault is not None:
        done.overflow = None
    elif done.overflow is not None and spare is not None:
        done.before = spare
    upto = done.results if done.fault is None else done.results[: done.fault - first]
    left = leaves_level([r.loss for r in upto])
    done.diverged_at = None if left is None else first + left
    return done


def survives(
    runner: StepRunner,
    done: Roll,
    overrides: Overrides = NOTHING,
    *,
    until: int | None = None,
    level: bool = True,
    usual: float = 0.0,
    modes: Iterable[AbstractContextManager[Any]] = (),
) -> bool:
    """True if all steps of the roll, rerun from its start under `overrides`, stay finite and below ten times the level.

    until: last step to run (default: that of the roll). level=False: they only have to stay finite. usual: a loss that
    counts as the level, too. modes: contexts to run the steps in. The runner is left in the state after the last step.
    """
    runner.restore(done.start)
    calm = done.results if done.diverged_at is None else done.results[: done.diverged_at - done.first]
    limit = ceiling([r.loss for r in calm if math.isfinite(r.loss)]) if level else math.inf
    limit = max(limit, 10 * usual)
    with runner.under(overrides), ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        for step in range(done.first, (done.last if until is None else until) + 1):
            result = runner.run(runner.draw(step), step)
            if result.failed or result.loss > limit:
                return False
    return True
