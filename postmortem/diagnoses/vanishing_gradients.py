from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import value_at
from postmortem.diagnoses.shared.story import Story, consequences, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class VanishingGradients:
    """The gradient norm fell close to zero while the loss was still high: the weights are hardly updated."""

    name = "vanishing-gradients"
    priority = 70

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        faded = named(findings, "gradient-vanishing")
        if not faded or has_errors(findings):
            return None
        root = faded[0]
        loss = view.main("loss")
        level = value_at(loss, view.last_step)
        others = [f for f in consequences(findings, root) if f.name != "gradient-vanishing" or f.step == root.step]
        return (
            Story(view, root, others)
            .because(f"{loss.tag} ends at {number(level, 3)}" if loss is not None and level is not None else None)
            .disproved_by("the loss is as low as the data allow (then a small gradient is normal)")
            .advise(
                "log the gradient norm per layer: start with the layer where it falls first",
                "try residual connections, normalisation, another activation or another initialisation there",
            )
            .diagnosis("vanishing-gradients", f"{root.message}.", "likely")
        )
