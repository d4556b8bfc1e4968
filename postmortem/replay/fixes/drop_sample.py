"""Leave out the samples at fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, fix
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View

_SHOWN = 10


@fix
class DropSample(BaseFix):
    """Leaves the samples at fault out of the batch.

    What it changes: the samples at fault are removed from the batch.

    When it is tried: if samples of the batch were found to be at fault.

    What a cure means: these samples make the step fail, and the rest of the batch does not. Inspect them.
    """

    name = "drop_sample"
    order = 60

    def applies(self, case: Case) -> bool:
        """Where samples are named, and the batch can do without them."""
        return bool(case.found.samples) and case.samples.can_be_dropped

    def change(self, case: Case) -> Overrides:
        """The batch without the samples."""
        return Overrides(batch=case.samples.drop(case.found.samples or ()))

    def attempt(self, case: Case) -> Culprit:
        """Where the step does not run with fewer samples, a healthy one takes the place of each."""
        fails, remark = case.fails(self.change(case))
        what, found = self.describe(case), list(case.found.samples or ())
        rest = [i for i in range(case.samples.size) if i not in set(found)]
        if fails is None and rest:
            fails, again = case.fails(Overrides(batch=case.samples.replace(found, rest)))
            if fails is False:
                what = f"{what} (with a healthy one in its place, as the step does not run with fewer)"
            remark = again if fails is False else remark
        cured = fails is False
        return case.with_fix(self.name, cured=cured, how=what + remark, loss=case.reruns.loss if cured else None)

    def describe(self, case: Case) -> str:
        """Names the samples."""
        samples = case.found.samples or ()
        return f"without sample{'s' * (len(samples) > 1)} {', '.join(map(str, samples))}"

    def conclude(self, case: Case) -> Culprit:
        """No samples are named where the step fails in the same way without them."""
        found = case.found
        failed = next((f for f in found.fixes if f.name == self.name and not f.cured), None)
        if failed is None or found.phase == "data" or not _fails_without(case):
            return found
        case.how.append("samples: no particular one, because the step also fails without them")
        return replace(found, samples=None, fixes=tuple(f for f in found.fixes if f is not failed))

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice | None:
        """Names the samples, at most ten of them."""
        if not culprit.samples:
            return None
        shown = ", ".join(map(str, culprit.samples[:_SHOWN])) + (", …" if len(culprit.samples) > _SHOWN else "")
        what, them = ("sample", "it") if len(culprit.samples) == 1 else ("samples", "them")
        rises = culprit.cause == "outlier-sample"
        of, end = (_of_step(culprit), "the loss does not rise") if rises else ("", "the step does not fail")
        text = f"inspect {what} {shown} of the batch{of}: without {them} {end}"
        return Advice(Scope.DATA, text)


def _fails_without(case: Case) -> bool:
    """Whether the step fails at the same stage without the samples, and not over other random numbers for the rest."""
    without = Overrides(batch=case.samples.drop(case.found.samples or ()))
    stage = case.stage or "param"
    return bool(case.reruns.fails(without, at=stage)) and case.reruns.draws_nothing(at=stage)


def _of_step(culprit: Culprit) -> str:
    """A rerun of a command gets the number of the step from the log, later."""
    return f" of step {culprit.step}" if culprit.step is not None else ""
