"""Reset the optimizer state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.culprit import Culprit, Fix
from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, fix
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.view import View


@fix
class FreshState(BaseFix):
    """Resets the optimizer state.

    What it changes: moments, averages and step counts of the optimizer are cleared, as at the start of training.

    When it is tried: on steps whose optimizer has a state, and on all steps of a run that diverged.

    What a cure means: the state is at fault, not the step: moments of other data or another model, or non-finite ones.
    The result is reported as `fresh_state` of the culprit.
    """

    name = "fresh_state"
    order = 90
    what = "optimizer state reset"
    overrides = Overrides(fresh_optimizer=True)

    def applies(self, case: Case) -> bool:
        """Where the optimizer has a state before the step."""
        return case.reruns.has_state()

    def attempt(self, case: Case) -> Culprit:
        """Sets `fresh_state`. Loss and gradients do not depend on the state: a fault in them needs no rerun."""
        fails = case.reruns.fails(self.overrides) if case.stage == "param" else True
        return replace(case.found, fresh_state=None if fails is None else not fails)

    def cure(self, culprit: Culprit) -> Fix | None:
        """The outcome as a fix, where it cured the step."""
        return Fix(name=self.name, cured=True, how=self.what) if culprit.fresh_state else None

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice:
        """A fresh state; after a divergence it comes last."""
        if culprit.cause == "divergence":
            return Advice(Scope.TRAINING, "reset the optimizer state (the loss then stays stable)")
        return Advice(Scope.STATE, "reset the optimizer state (makes the step finite)")
