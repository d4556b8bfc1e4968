from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses._story import NONFINITE, consequences, faults, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class NanFromStart:
    """The loss was never a number, or only for the very first rows: data or initial weights are not finite."""

    name = "nan-from-the-start"
    priority = 20

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = [f for f in faults(view, findings) if f.name in NONFINITE]
        loss = view.main("loss")
        if not bad or loss is None or not len(loss):
            return None
        root = bad[0]
        if root.evidence.get("before") is not None or root.step is None or root.step > int(loss.step[min(1, len(loss) - 1)]):
            return None
        return tell(
            view,
            "nan-from-the-start",
            root,
            consequences(findings, root),
            summary=f"{root.message}: no step ever gave a number.",
            evidence_for=[f.message for f in named(findings, *NONFINITE)[:3]],
            against=[] if root.evidence.get("points", 0) > 1 else ["only one point was logged"],
            disprove=["the first batch and the initial weights are finite"],
            advice=[
                "check the first batch: torch.isfinite(x).all() on inputs and targets (missing values, division by a zero standard deviation)",
                "check the weights before the first step, loaded ones above all: all(torch.isfinite(p).all() for p in model.parameters())",
            ],
        )
