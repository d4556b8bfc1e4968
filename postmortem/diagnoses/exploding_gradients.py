from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.growth import growths
from postmortem.diagnoses.shared.last_good import stable_before
from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, faults, sentence

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class ExplodingGradients:
    """The gradient norm grew by orders of magnitude, and the loss followed, at a learning rate that did not rise.

    Also reported for a non-finite value right after a gradient norm a hundred times its usual level, unless the loss
    grew with it over several rows: that is a divergence.
    """

    name = "exploding-gradients"
    priority = 45

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in faults(view, findings) if f.name in (*BLOW_UP, *NONFINITE)]
        grown = [f for f in found if f.name == "gradient-explosion"]
        root = next(iter(found), None)
        if root is None:
            return None
        summary = f"The gradients exploded: {grown[0].message}." if grown else None
        if root.name in NONFINITE:
            summary = _grew_before(view, root)
        if summary is None:
            return None
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
            .diagnosis("exploding-gradients", summary, "likely")
        )


def _grew_before(view: View, root: Finding) -> str | None:
    """In words: a gradient norm that grew up to a non-finite value, before or without the loss; else None."""
    grown = growths(view, root)
    norm = next((g for g in grown if g.series.role == "grad_norm"), None)
    if norm is None or any(not g.sudden for g in grown if g is not norm):
        return None  # a loss that grew is a divergence, however fast, and whether or not a gradient norm is logged
    return f"{norm}: it exploded. {sentence(root.message)}."
