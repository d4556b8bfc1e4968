"""Clip the gradient norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses.shared.schedule import clip
from postmortem.replay.fixes import Advice, BaseFix, Scope, fix
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View


@fix
class ClipGrad(BaseFix):
    """Clips the gradient norm to 1.

    What it changes: the total norm of all gradients is limited to 1 before the optimizer's step, instead of to the
    step's own limit.

    When it is tried: on every step that fails, and on all steps of a run that diverged.

    What a cure means: the update was too large. Loss and gradients are computed before the update, so clipping never
    cures non-finite values in them.
    """

    name = "clip_grad"
    order = 10
    what = "gradient norm at most 1"
    overrides = Overrides(clip=1.0)
    limits_update = True

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice:
        """The limit that the gradient norms of the log suggest."""
        limit = clip(view, culprit.step) if view is not None else None
        return Advice(Scope.TRAINING, f"{limit or 'clip the gradient norm'} ({cure.how}: cures it)")
