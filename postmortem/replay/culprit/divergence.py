"""Weights that were driven off over several steps, by steps that were too large: no single operator's fault."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.culprit import Culprit, Fix
from postmortem.replay.fixes import FIXES
from postmortem.replay.fixes.fresh_state import FreshState
from postmortem.replay.fixes.precision import DoublePrecision
from postmortem.replay.roll.roll import survives
from postmortem.replay.step.runner import Overrides

if TYPE_CHECKING:
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.runner import StepRunner

_FURTHER = 100  # steps past the fault in which double precision has to stay finite


def far_off(roll: Roll) -> bool:
    """Whether the loss grew a thousandfold: without a fault, and where no log says so, less is no divergence."""
    losses = [abs(r.loss) for r in roll.results]
    return losses[-1] > 1000 * max(losses[0], 1e-12)


def divergence(runner: StepRunner, roll: Roll, step: int, how: list[str], *, fixes: bool) -> Culprit | None:
    """The culprit where the loss left its level until `step` and smaller steps from the start, or none, keep it there; else None.

    What established it is added to `how`. fixes=False: what was tried is not told.
    """
    if roll.diverged_at is None or roll.diverged_at > step:
        return None
    rerun = _Rerun(runner, roll)
    tried = rerun.smaller_steps()
    cured = any(f.cured for f in tried)
    if not cured and not rerun.survives(Overrides(lr=0.0)):
        if not rerun.batches_differ():
            return None
        tried = rerun.smaller_steps()
        cured = any(f.cured for f in tried)
        if not cured:
            return None
    double = DoublePrecision.overrides
    known = rerun.known_batches
    end = None if roll.fault is None or known is None else min(roll.first + known - 1, roll.last + _FURTHER)
    precise = rerun.survives(double, end, level=end is None)  # gone is: finite to the end of the batches; where that is not known, at its level
    tried.append(Fix(name=DoublePrecision.name, cured=precise and rerun.survives(double), how="all steps in double precision"))
    losses = [r.loss for r in roll.results]
    how.append(f"the loss leaves its level at step {roll.diverged_at} and goes from {losses[0]:.4g} to {losses[-1]:.4g}: no single operator's fault")
    if not cured:
        how.append("with the weights held still it stays at its level; smaller steps or gradients do not hold it there")
    return Culprit(
        cause="divergence", phase="optimizer", step=step, precision_only=precise, fixes=tuple(tried) if fixes else (),
        fresh_state=rerun.survives_afresh() if fixes else None, how=tuple(how), established="cured" if cured else "observed",
    )  # fmt: skip


class _Rerun:
    """The steps of a roll, run again from its start under another setting."""

    def __init__(self, runner: StepRunner, roll: Roll) -> None:
        self.runner, self.roll = runner, roll
        count = getattr(runner.train_step.batches, "__len__", None)
        self.known_batches: int | None = None if count is None else count()
        self.usual = 0.0
        """A loss that counts as the level, beside those of the first steps."""

    def smaller_steps(self) -> list[Fix]:
        """The outcomes of the fixes that limit the update, each from the first step on."""
        limits = [kind for kind in FIXES if kind.limits_update]
        return [
            Fix(name=kind.name, cured=self.survives(kind.overrides), how=f"{kind.what}, from step {self.roll.first} on") for kind in reversed(limits)
        ]

    def batches_differ(self) -> bool:
        """Whether the same batches leave the level of the first steps with the weights held still too, but not a thousandth as far as
        the roll went. The largest of those losses then counts as usual."""
        runner, roll = self.runner, self.roll
        runner.restore(roll.start)
        try:
            with runner.under(Overrides(lr=0.0)):
                still = [abs(runner.run(runner.draw(step), step).loss) for step in range(roll.first, roll.last + 1)]
        except Exception:  # noqa: BLE001  (user code that refuses what is not finite)
            return False
        if not all(map(math.isfinite, still)) or max(abs(r.loss) for r in roll.results if math.isfinite(r.loss)) <= 1000 * max(still):
            return False
        self.usual = max(still)
        return True

    def survives(self, overrides: Overrides, until: int | None = None, *, level: bool = True) -> bool:
        try:
            return survives(self.runner, self.roll, overrides, until=until, level=level, usual=self.usual)
        except Exception:  # noqa: BLE001  (user code that refuses what is not finite, or that another precision does not suit)
            follow = overrides.dtype is not None and not overrides.casts_follow
            return follow and self.survives(replace(overrides, casts_follow=True), until, level=level)

    def survives_afresh(self) -> bool | None:
        """Whether forgetting the optimizer's state holds the loss, and does not only put off what comes: twice as far as well.
        None where there is no state."""
        self.runner.restore(self.roll.start)
        if not any(getattr(optimizer, "state", None) for optimizer in self.runner.optimizers.values()):
            return None
        twice = 2 * self.roll.last - self.roll.first + 1
        if callable(self.runner.train_step.batches):
            end = twice
        else:
            end = self.roll.last if self.known_batches is None else min(self.roll.first + self.known_batches - 1, twice)
        return self.survives(FreshState.overrides, end)
