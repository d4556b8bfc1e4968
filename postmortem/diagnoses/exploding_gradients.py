from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import calm_before
from postmortem.diagnoses.shared.schedule import clip, lower_rate, number, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, consequences, faults, tell

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
        one_batch = calm_before(view, root.step) and any(f.name == "loss-spike" and f.step == root.step for f in found)
        sudden = [f"loss and gradient norm were calm up to the step before: the batch of step {root.step} may have set it off"] if one_batch else []
        look = [f"look at the samples of step {root.step}: extreme values, empty or very long samples"] if one_batch else []
        return tell(
            view,
            "exploding-gradients",
            root,
            others,
            summary=f"The gradients exploded: {grown[0].message}.",
            evidence_for=[*sudden, *(f.message for f in others[:3])],
            against=[f"{rate.tag} was {number(rate.at)} and did not rise before it"] if rate is not None else ["no learning rate is logged"],
            disprove=["with the gradient norm clipped the loss climbs all the same: then the direction is wrong, not the size"],
            advice=[
                *look,
                *filter(None, [clip(view, root.step)]),
                lower_rate(view, rate),
                "weight decay or normalisation, where the weights themselves grow",
            ],
        )
