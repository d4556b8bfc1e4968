from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import value_at
from postmortem.diagnoses.shared.story import Story, consequences, has_errors, named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_LARGE_DROP, _USUAL_DROP = 0.77, 0.05
"""The share of a learning rate that a drop of a staircase leaves at most, and that a usual one leaves at least."""


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
        drops = None if rate is None else _drops(rate, root.step)
        if rate is not None and drops is not None:
            ended, cure = f"The learning rate was dropped too far by step {root.step}", _of_drops(rate, drops)
        else:
            factor = number(total / max(1, root.step or 1), 2)
            ended = f"The schedule ended at step {root.step}"
            cure = (
                f"the scheduler may run {factor} times too fast: set its total steps to {total}, "
                "or call scheduler.step() once per optimizer step"
            )
        return (
            Story(view, root, still)
            .because(*(f.message for f in still[:2]))
            .against(None if still or plateau else "no plateau of the loss was found")
            .disproved_by(
                "the schedule was configured to end there"
                if drops is None
                else "the rate was meant to be so low by then"
            )
            .advise(cure)
            .diagnosis(
                "dead-schedule",
                f"{ended} of {view.last_step}: {root.message}." + (" The loss has been flat since." if still else ""),
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


def _drops(rate: Series, end: int | None) -> NDArray[np.intp] | None:
    """The rows at which the rate dropped, if it did so by `end` in few large drops with constant stretches between
    them, as of ReduceLROnPlateau or StepLR; None for a rate that declined from row to row."""
    until = len(rate) if end is None else int(np.searchsorted(rate.step, end, side="right"))
    x = rate.value
    rows = np.flatnonzero(np.diff(x) < 0) + 1
    before = rows[rows < until]
    stairs = 1 <= len(before) <= until / 3 and float(np.median(x[before] / x[before - 1])) < _LARGE_DROP
    return rows if stairs else None


def _of_drops(rate: Series, rows: NDArray[np.intp]) -> str:
    """What to do about a rate that dropped at `rows`."""
    x, tag = rate.value, rate.tag
    shares = x[rows] / x[rows - 1]
    if len(rows) == 1:
        at = int(rows[0])
        return (
            f"{tag} drops once, from {number(x[at - 1])} to {number(x[at])} at step {rate.step[at]}: check what sets "
            "it there (milestone, gamma, factor); a drop usually leaves a tenth"
        )
    if shares.min() < _USUAL_DROP:
        steps = ", ".join(str(s) for s in rate.step[rows[:3]]) + (", …" if len(rows) > 3 else "")
        alike = shares.max() < 1.1 * shares.min()
        left = f"{'' if alike else 'as little as '}{number(float(shares.min()), 2)} of its value"
        return (
            f"{tag} drops at steps {steps}, {'each time ' if alike else ''}to {left}: a drop usually leaves a tenth "
            "(gamma, factor); or let it drop later"
        )
    return (
        "the learning rate fell in steps to (almost) zero: set a lower bound (min_lr), wait longer "
        "before each reduction (patience, step_size), or step the scheduler once per evaluation, not per batch"
    )
