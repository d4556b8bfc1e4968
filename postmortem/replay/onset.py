"""Since when a layer is dead or saturated: bisected over the checkpoints, then step by step between two of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.errors import PostmortemError
from postmortem.replay.attempts import INITIAL
from postmortem.replay.culprit.activity import SHARE, Activity
from postmortem.replay.roll.fidelity import compare

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.attempts import Attempts
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.runner import StepRunner

_FAR = 500  # steps between two checkpoints that are run one by one
_KINDS = ("dead-units", "saturated", "constant-output")


def with_onset(found: Culprit, attempts: Attempts, first: int) -> Culprit:
    """The culprit of a dead layer, with the step since when it is so in ``tensor["since"]``, if that can be found.

    first: the first step that was replayed, at which the layer was dead.
    """
    if found.tensor.get("kind") not in _KINDS or "since" in found.tensor:
        return found
    try:
        step, note = _Onset(found, attempts).since(first)
    except (PostmortemError, OSError) as error:
        step, note = None, f"since when is not known: {error}"
    tensor = found.tensor if step is None else {**found.tensor, "since": step}
    return replace(found, tensor=tensor, how=(*found.how, note))


class _Onset:
    def __init__(self, found: Culprit, attempts: Attempts) -> None:
        self.key = found.module or "", found.tensor["kind"], found.op or ""
        self.attempts = copy.copy(attempts)
        self.attempts.aim = replace(attempts.aim, step=None)

    def since(self, first: int) -> tuple[int | None, str]:
        known = sorted((c.step, c.path) for c in self.attempts.checkpoints if c.step is not None and c.step < first)
        starts: list[Path | None] = [None, *(Path(path) for _, path in known)]
        low, high = 0, len(starts) - 1  # dead at `high`, which is where the replay began or before it
        while low < high:
            middle = (low + high) // 2
            if self._dead_at(starts[middle]):
                high = middle
            else:
                low = middle + 1
        begin = starts[max(0, high - 1)] if high else None
        until = first
        if high < len(starts) - 1 or high == 0:
            until = self._first(starts[high]) if high else first
        return self._step_by_step(begin, until)

    def _built(self, path: Path | None) -> tuple[StepRunner, int]:
        self.attempts.path = path
        runner, account, saved = self.attempts.build()
        account.rng.restore()
        return runner, self.attempts.firsts(runner, saved)[0]

    def _first(self, path: Path | None) -> int:
        return self._built(path)[1]

    def _dead_at(self, path: Path | None) -> bool:
        runner, first = self._built(path)
        return self._dead(runner, first)[0]

    def _dead(self, runner: StepRunner, step: int) -> tuple[bool, StepResult]:
        """Whether the layer is dead in `step`, which is run, and its result."""
        batch = runner.draw(step)
        with Activity(runner) as activity:
            result = runner.run(batch, step)
        return any(o.key == self.key and o.share >= SHARE for o in activity.layers), result

    def _step_by_step(self, begin: Path | None, until: int) -> tuple[int | None, str]:
        runner, step = self._built(begin)
        start = INITIAL if begin is None else begin.name
        first = step
        results: list[StepResult] = []
        while step <= min(until, first + _FAR):
            dead, result = self._dead(runner, step)
            results.append(result)
            if dead:
                break
            step += 1
        else:
            return (
                None,
                f"replayed from {start} up to step {step - 1}, the layer is not yet so: since when is not known",
            )
        told = compare(results, self.attempts.logged(runner, results[0]))
        if told.compared and not told.ok:
            return None, f"replayed from {start}, the losses do not match the log: since when is not known"
        if step == first:
            return step, f"it is so from the first step after {start} on, step {step}"
        before = results[-2]
        update = f"the update of step {before.step} had a learning rate of {before.lr:.4g}"
        return (
            step,
            f"it is so from step {step} on (replayed from {start}): {update} and a norm of {before.grad_norm:.4g}",
        )
