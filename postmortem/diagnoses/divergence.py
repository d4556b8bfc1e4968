from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses._story import later, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Divergence:
    """The loss turned and climbed, or the gradients exploded, and the schedule does not explain it."""

    name = "divergence"
    priority = 50

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        grave = [f for f in named(findings, "divergence", "gradient-explosion", "loss-spike") if f.severity == "error"]
        if not grave:
            return None
        root = grave[0]
        return tell(
            view,
            "divergence",
            root,
            later(findings, root),
            summary=f"The training diverged: {root.message}.",
            evidence_for=[f.message for f in grave[1:]],
        )
