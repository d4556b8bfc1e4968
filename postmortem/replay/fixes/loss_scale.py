"""Lower the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses.shared.schedule import value_at
from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, fix
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View


@fix
class LossScale(BaseFix):
    """Sets the loss scale to 1.

    What it changes: the GradScaler multiplies the loss by 1, so the gradients are not scaled.

    When it is tried: on steps with a GradScaler.

    What a cure means: the scaled gradients overflow float16, the unscaled gradients do not.
    """

    name = "loss_scale"
    order = 80
    what = "loss scale 1"
    overrides = Overrides(loss_scale=1.0)

    def applies(self, case: Case) -> bool:
        """Where the step uses a GradScaler."""
        return case.reruns.scaled

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice:
        """A scale below the one in the log."""
        at = value_at(view.main("loss_scale"), culprit.step) if view is not None else None
        below = f"{at:g}, the one at that step" if at is not None else "the one at that step"
        text = f"use a loss scale below {below}, halved at each overflow (with a loss scale of 1 the step is finite)"
        return Advice(Scope.PRECISION, text)
