"""Training that diverged over several steps because the updates were too large: not caused by a single operator."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from postmortem.core.culprit import Fix
from postmortem.replay.culprit.stages import stage
from postmortem.replay.fixes import Case, limit_updates
from postmortem.replay.fixes.fresh_state import FreshState
from postmortem.replay.fixes.precision import DoublePrecision
from postmortem.replay.roll.roll import survives
from postmortem.replay.step.function_mode import StepMode
from postmortem.replay.step.overrides import NOTHING, Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.fixes import Change
    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.runner import StepRunner

_FURTHER = 100  # steps after the fault that have to stay finite in double precision


def far_off(roll: Roll) -> bool:
    """True if the loss grew a thousandfold. If no step fails and the log reports no failure, less is no divergence."""
    losses = [abs(r.loss) for r in roll.results]
    return losses[-1] > 1000 * max(losses[0], 1e-12)


@stage(order=10)
def divergence(case: Investigation) -> Culprit | None:
    """Answers if the loss became unstable, and smaller updates from the start of the roll, or none at all, keep it
    stable."""
    if case.reruns.rolled is None:
        return None
    roll, trail = case.reruns.rolled.roll, case.trail
    if case.step is None and not (roll.last - roll.first >= 2 and (case.reported or far_off(roll))):
        return None
    if roll.diverged_at is None or roll.diverged_at > case.last:
        return None
    rerun = _Rerun(case.reruns.rolled.runner, roll)
    tried = rerun.smaller_steps(case)
    cured = any(f.cured for f in tried)
    if not cured and not rerun.survives(Overrides(lr=0.0)):
        if not rerun.batches_differ():
            return None
        tried = rerun.smaller_steps(case)
        cured = any(f.cured for f in tried)
        if not cured:
            return None
    precise, double = rerun.in_double_precision()
    tried.append(double)
    losses = [r.loss for r in roll.results]
    growth = f"goes from {losses[0]:.4g} to {losses[-1]:.4g}"
    trail.append(f"the loss is unstable from step {roll.diverged_at} on and {growth}: not caused by a single operator")
    if not cured:
        held = "a lower learning rate or clipped gradients do not keep it stable"
        trail.append(f"with a learning rate of 0 the loss is stable; {held}")
    return case.culprit(
        cause="divergence",
        phase="optimizer",
        step=case.last,
        precision_only=precise,
        fixes=tuple(tried) if case.fixes else (),
        fresh_state=rerun.survives_afresh() if case.fixes else None,
        established="cured" if cured else "observed",
    )


class _Rerun:
    """The steps of a roll, rerun from its start under other settings."""

    def __init__(self, runner: StepRunner, roll: Roll) -> None:
        self.runner, self.roll = runner, roll
        count = getattr(runner.train_step.batches, "__len__", None)
        self.known_batches: int | None = None if count is None else count()
        self.usual = 0.0
        """A loss that counts as the level, in addition to those of the first steps."""

    def smaller_steps(self, case: Investigation) -> list[Fix]:
        """The outcomes of the fixes that limit the update, each applied from the first step on."""
        found = case.culprit(cause="divergence", phase="optimizer", step=case.last)
        tried = Case(found, case.reruns, case.samples, None, case.trail)
        return limit_updates(tried, self.survives, f"from step {self.roll.first} on")

    def in_double_precision(self) -> tuple[bool, Fix]:
        """(whether the divergence is gone in double precision, the outcome as a fix).

        Gone means that the steps stay finite to the end of the batches or, if that is not known, at their level.
        """
        double, known = DoublePrecision.overrides, self.known_batches
        end = None
        if self.roll.fault is not None and known is not None:
            end = min(self.roll.first + known - 1, self.roll.last + _FURTHER)
        precise = self.survives(double, end, level=end is None)
        cured = precise and self.survives(double)
        return precise, Fix(name=DoublePrecision.name, cured=cured, how="all steps in double precision (fp64)")

    def batches_differ(self) -> bool:
        """True if the batches leave the level of the first steps with fixed weights too, but less than a thousandth as
        far as the roll did. The largest of these losses then counts as usual."""
        runner, roll = self.runner, self.roll
        runner.restore(roll.start)
        try:
            with runner.under(Overrides(lr=0.0)):
                still = [abs(runner.run(runner.draw(step), step).loss) for step in range(roll.first, roll.last + 1)]
        except Exception:  # noqa: BLE001  (user code that refuses non-finite values)
            return False
        largest = max(abs(r.loss) for r in roll.results if math.isfinite(r.loss))
        if not all(map(math.isfinite, still)) or largest <= 1000 * max(still):
            return False
        self.usual = max(still)
        return True

    def survives(self, change: Change, until: int | None = None, *, level: bool = True) -> bool:
        """As `roll.survives`; False if the steps cannot be run with `change`."""
        overrides, modes = (NOTHING, (change,)) if isinstance(change, StepMode) else (change, ())
        rerun = partial(survives, self.runner, self.roll, until=until, level=level, usual=self.usual, modes=modes)
        try:
            return rerun(overrides)
        except Exception:  # noqa: BLE001  (user code that refuses non-finite values, or this precision)
            follow = overrides.dtype is not None and not overrides.casts_follow
            return follow and self.survives(replace(overrides, casts_follow=True), until, level=level)

    def survives_afresh(self) -> bool | None:
        """True if clearing the optimizer's state keeps the loss at its level for twice as many steps, so that it does
        not only delay the divergence. None if there is no state."""
        self.runner.restore(self.roll.start)
        if not any(getattr(optimizer, "state", None) for optimizer in self.runner.optimizers.values()):
            return None
        twice = 2 * self.roll.last - self.roll.first + 1
        if callable(self.runner.train_step.batches):
            end = twice
        else:
            end = self.roll.last if self.known_batches is None else min(self.roll.first + self.known_batches - 1, twice)
        return self.survives(FreshState.overrides, end)
