"""Lower the learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.replay.fixes import Advice, BaseFix, Scope, fix
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View
    from postmortem.diagnoses.shared.schedule import Rate


@fix
class LowerLr(BaseFix):
    """Lowers the learning rate to a hundredth.

    What it changes: the learning rate of every parameter group is multiplied by 0.01.

    When it is tried: on every step that fails, and on all steps of a run that diverged.

    What a cure means: the update was too large. Loss and gradients are computed before the update, so a lower learning
    rate never cures non-finite values in them.
    """

    name = "lower_lr"
    order = 20
    what = "learning rate × 0.01"
    overrides = Overrides(lr=0.01)
    limits_update = True

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice:
        """The rate to set instead of the one in the log."""
        known = lower_rate(view, _rate(view, culprit.step)) if view is not None else "lower the learning rate"
        return Advice(Scope.RATE, f"{known} ({cure.how}: cures it)")


def _rate(view: View, step: int | None) -> Rate | None:
    """The learning rate at `step`, and if it was raised in one jump before that, the rate before the jump."""
    rate, raw = rate_at(view, step), view.main("lr")
    if rate is None or raw is None or step is None:
        return rate
    x = raw.finite.value[raw.finite.step <= step]
    raised = [i for i in range(1, len(x)) if x[i] > 3 * x[i - 1] > 0]
    if not raised or x[raised[-1] :].max() >= 1.5 * x[raised[-1]]:
        return rate
    return replace(rate, before=float(x[raised[-1] - 1]))
