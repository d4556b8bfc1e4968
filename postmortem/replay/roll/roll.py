"""Rolls forward step by step, stops at the step at fault, and tells a divergence from a single bad step."""

from __future__ import annotations

import itertools
import math
import statistics
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postmortem.replay.step.runner import NOTHING, Overrides, ReplayError, StepResult, StepRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postmortem.replay.rerun.determinism import Again
    from postmortem.replay.step.state import State


@dataclass(slots=True, kw_only=True)
class Roll:
    """Steps that were run from `first` on, and where they went wrong.

    `fault`: the first step in which a loss, a gradient or a parameter is not finite (a gradient that the scaler
    met and skipped is none). `overflow`: the first of the skipped steps with which the roll ended, without a good
    step after it. `start` is the state before `first`, `before` the one before the fault (or overflow, or, where there is
    neither, the last step), after its batch was drawn. `diverged_at`: from this step on the loss
    has left its level for good, and the loss grew over steps rather than in one. `ended`: why the roll stopped early.
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
    """What the step at fault raised, where it did not come to its end. Its result has no losses."""
    again: Again | None = None
    """What running the step at fault again showed, once it was."""

    @property
    def last(self) -> int:
        return self.results[-1].step if self.results else self.first

    def result(self, step: int) -> StepResult:
        return self.results[step - self.first]


def roll(
    runner: StepRunner,
    first: int,
    last: int,
    *,
    watch: Callable[[StepResult], bool | None] | None = None,
    past_fault: bool = False,
) -> Roll:
    """Runs the steps `first`..`last` from the present state, up to the first fault (or, `past_fault`, all of them).

    `watch` sees every result and ends the roll by returning False. The runner is left behind the last step that
    ran. A step that raises ends the roll as its fault (`raised`). Batches that end early end it too (`ended` says so);
    ReplayError where not even the first could be had.
    """
    start = runner.snapshot()
    done = Roll(first=first, start=start, before=start)
    spare: State | None = None  # `before`, held at the start of a row of skipped steps
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
        if not settled and (result.first_nonfinite in ("loss", "param") or (result.first_nonfinite == "grad" and not result.skipped)):
            done.fault = step
        if done.fault is None and result.skipped:
            if done.overflow is None:
                done.overflow = step
                done.before, spare = spare if spare is not None else runner.snapshot(), done.before
        elif done.fault is None:
            done.overflow = None
        if done.raised is not None or (watch is not None and watch(result) is False) or (done.fault is not None and not past_fault):
            break
    if done.fault is not None:
        done.overflow = None
    elif done.overflow is not None and spare is not None:
        done.before = spare
    upto = done.results if done.fault is None else done.results[: done.fault - first]
    left = leaves_level([r.loss for r in upto])
    done.diverged_at = None if left is None else first + left
    return done


def ceiling(losses: Sequence[float]) -> float:
    """Ten times the level at which these losses begin: above it a run has left its level."""
    head = [x for x in losses[: max(3, len(losses) // 10)] if math.isfinite(x)]
    if not head:
        return math.inf
    if len(head) < 3:  # too few for a spread: of two that differ by their batches alone, the larger one
        return 10 * max(map(abs, head))
    middle = statistics.median(head)
    return middle + 9 * max(abs(middle), *(abs(x - middle) for x in head[1:]), 1e-12)


def leaves_level(losses: Sequence[float]) -> int | None:
    """The index from which on the loss has left its level for good, growing over at least two steps; else None.

    Left is: ten times the level of the first steps, or ten times everything before and growing on. One jump counts only
    where it is a thousandfold (the weights were thrown away by the update before it).
    """
    n = len(losses)
    if not n or not all(map(math.isfinite, losses)):
        return None
    limit = ceiling(losses)
    above = [x > limit for x in losses]
    crossed = next((i for i in range(n, 0, -1) if not above[i - 1]), 0)
    lowest_after = list(itertools.accumulate(reversed(losses), min))[::-1]
    highest, apart = abs(losses[0]), n
    for i in range(1, n):
        lowest = lowest_after[i]
        if lowest > 10 * highest and (losses[-1] > 10 * losses[i] or lowest > 1000 * highest):
            apart = i
            break
        highest = max(highest, abs(losses[i]))
    left = min([i for i in (crossed, apart) if 0 < i <= n - 2], default=None)
    if left is None and n >= 2 and losses[-1] > 1000 * max(abs(x) for x in losses[:-1]):
        return n - 1
    return left


def leaps(losses: Sequence[float]) -> int | None:
    """The index at which the loss leaps to ten times all before it, and half of what follows stays above twice that; else None.

    Noise does so as well: it is for runs of which the log says that the loss grew.
    """
    sizes = [abs(x) for x in losses]
    highest = list(itertools.accumulate(sizes, max))
    return next((i for i in range(1, len(sizes)) if sizes[i] > 10 * highest[i - 1] and statistics.median(sizes[i:]) > 2 * highest[i - 1]), None)


def survives(
    runner: StepRunner, done: Roll, overrides: Overrides = NOTHING, *, until: int | None = None, level: bool = True, usual: float = 0.0
) -> bool:
    """Whether all steps of the roll, rerun from its start under `overrides`, stay finite and within ten times the level.

    With `until` the steps up to that one are run; without `level` they only have to stay finite. A loss of `usual` counts as its level.
    Leaves the runner in whatever state that makes: restore one.
    """
    runner.restore(done.start)
    calm = done.results if done.diverged_at is None else done.results[: done.diverged_at - done.first]
    limit = ceiling([r.loss for r in calm if math.isfinite(r.loss)]) if level else math.inf
    limit = max(limit, 10 * usual)
    with runner.under(overrides):
        for step in range(done.first, (done.last if until is None else until) + 1):
            result = runner.run(runner.draw(step), step)
            if result.first_nonfinite in ("loss", "param") or (result.first_nonfinite == "grad" and not result.skipped) or result.loss > limit:
                return False
    return True
