from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, Story, consequences, faults

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Divergence:
    """The loss rose (or jumped) and did not recover, and neither the learning rate nor a resume explains it."""

    name = "diverged"
    priority = 50

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        root = next(iter(faults(view, findings)), None)
        if root is None or root.name not in BLOW_UP:
            return None
        rate = rate_at(view, root.step)
        others = consequences(findings, root)
        falls = root.name == "divergence" and float(root.evidence.get("end", 0.0)) < 0
        return (
            Story(view, root, others)
            .because(*(f.message for f in others[:3]))
            .against(
                f"{rate.tag} was {number(rate.at, 3)} at the onset and had not risen before it"
                if rate is not None
                else None
            )
            .disproved_by(
                "with a third of the learning rate, the same steps from the last good checkpoint diverge as well "
                "(then check data and loss)"
            )
            .advise(
                "check whether the loss has a minimum at all: with a term of the wrong sign, or one that grows with "
                "the scale of the outputs, it has none, and no learning rate helps"
                if falls
                else None,
                lower_rate(view, rate),
                clip(view, root.step),
                "check what changed at the onset: data shard, loss weights, training phase",
            )
            .replay()
            .diagnosis("diverged", f"The training diverged: {root.message}.")
        )
