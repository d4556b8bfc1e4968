"""A fix that every replay tries beside postmortem's own."""

from __future__ import annotations

from postmortem.plugins import Advice, BaseFix, Culprit, Fix, Overrides, Scope, View, fix


@fix
class HalfLr(BaseFix):
    """Halves the learning rate.

    What it changes: every parameter group takes the step with half of its learning rate.

    When it is tried: on every step that fails, and on all steps of a training that diverged.

    What a cure means: the update was too large, but not by much.
    """

    name = "half_lr"
    order = 25
    what = "learning rate × 0.5"
    overrides = Overrides(lr=0.5)
    limits_update = True

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice:
        """What to do where half the learning rate cured the step."""
        return Advice(Scope.RATE, f"halve the learning rate ({cure.how}: cures it)")
