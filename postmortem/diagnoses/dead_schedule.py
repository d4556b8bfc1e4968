from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import value_at
from postmortem.diagnoses.shared.story import Story, consequences, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@diagnosis
class DeadSchedule:
    """The learning rate reached zero, or a thousandth of its peak, long before the end, and the loss has not changed
    since (without such a plateau, only a possible cause)."""

    name = "dead-schedule"
    priority = 72

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        zero = named(findings, "lr-zero") or [f for f in named(findings, "loss-plateau") if _too_small(view, f.step)]
        if not zero or has_errors(findings):
            return None
        root = zero[0]
        still = [f for f in consequences(findings, root) if f.name in ("loss-plateau", "constant-metric")]
        total = max(1, view.last_step or 0)
        plateau = root.name == "loss-plateau"
        rate = next((s.finite for s in view.of("lr") if plateau or s.tag == root.tag), None)
        if rate is not None and _in_steps(rate, root.step):
            cure = (
                "the learning rate fell in steps to (almost) zero: set a lower bound (min_lr), wait longer "
                "before each reduction (patience, step_size), or step the scheduler once per evaluation, not per batch"
            )
        else:
            factor = number(total / max(1, root.step or 1), 2)
            cure = (
                f"the scheduler may run {factor} times too fast: set its total steps to {total}, "
                "or call scheduler.step() once per optimizer step"
            )
        return (
            Story(view, root, still)
            .because(*(f.message for f in still[:2]))
            .against(None if still or plateau else "no plateau of the loss was found")
            .disproved_by("the schedule was configured to end there")
            .advise(cure)
            .diagnosis(
                "dead-schedule",
                f"The schedule ended at step {root.step} of {view.last_step}: {root.message}."
                + (" The loss has been flat since." if still else ""),
                "likely" if still or plateau else "possible",
            )
        )


def _too_small(view: View, step: int | None) -> bool:
    """True if the learning rate was at most a thousandth of its peak at `step` and at the end."""
    rate = view.main("lr")
    if rate is None or not len(rate.finite):
        return False
    ends = (value_at(rate, step), value_at(rate, view.last_step))
    return all(at is not None and at <= 1e-3 * float(rate.finite.value.max()) for at in ends)


def _in_steps(rate: Series, end: int | None) -> bool:
    """True if the rate fell in a few drops with constant stretches between them, as of ReduceLROnPlateau or StepLR."""
    before = rate.value[rate.step < end] if end is not None else rate.value
    drops = int((np.diff(before) < 0).sum())
    return len(before) >= 10 and 1 <= drops <= len(before) / 4
