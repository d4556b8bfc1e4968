from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import stable_before
from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, faults

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class ExplodingGradients:
    """The gradient norm grew by orders of magnitude, and the loss followed, at a learning rate that did not rise."""

    name = "exploding-gradients"
    priority = 45

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in faults(view, findings) if f.name in (*BLOW_UP, *NONFINITE)]
        grown = [f for f in found if f.name == "gradient-explosion"]
        if not grown or (found[0] is not grown[0] and found[0].name in NONFINITE):
            return None
        root = found[0]
        rate = rate_at(view, root.step)
        others = consequences(findings, root)
        batch = f"the batch of step {root.step}"
        one_batch = stable_before(view, root.step) and any(
            f.name == "loss-spike" and f.step == root.step for f in found
        )
        return (
            Story(view, root, others)
            .because(
                f"loss and gradient norm were stable up to the previous step: {batch} may have triggered it"
                if one_batch
                else None,
                *(f.message for f in others[:3]),
            )
            .against(
                "no learning rate is logged"
                if rate is None
                else f"{rate.tag} was {number(rate.at, 3)} and did not rise before it"
            )
            .disproved_by("with the gradient clipped, the loss still rises (then its direction is wrong, not its size)")
            .advise(
                f"check the samples of step {root.step}: extreme values, empty or very long samples"
                if one_batch
                else None,
                clip(view, root.step),
                lower_rate(view, rate),
                "if the weights themselves grow: weight decay or normalisation",
            )
            .replay()
            .diagnosis("exploding-gradients", f"The gradients exploded: {grown[0].message}.")
        )
