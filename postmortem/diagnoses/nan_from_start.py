from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import number
from postmortem.diagnoses.shared.story import NONFINITE, consequences, faults, named, role, tell

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
        first = float(loss.value[0])
        advice = []
        if np.isfinite(first) and role(view, root) != "loss":  # the mean loss of the first rows: the first update may have blown up
            rate = view.main("lr")
            at = f" at a learning rate of {number(float(rate.value[0]))}" if rate is not None and len(rate) else ""
            advice.append(
                f"{loss.tag} was {number(first)} at step {loss.step[0]}{at}: where that is far above chance, lower the learning rate or warm it up"
            )
        return tell(
            view,
            "nan-from-the-start",
            root,
            consequences(findings, root),
            summary=f"{root.message}{'' if advice else ': no step ever gave a number'}.",
            evidence_for=[f.message for f in named(findings, *NONFINITE)[:3]],
            against=[] if root.evidence.get("points", 0) > 1 else ["only one point was logged"],
            disprove=["the first batch and the initial weights are finite"],
            advice=[
                *advice,
                "check the first batch: torch.isfinite(x).all() on inputs and targets (missing values, division by a zero standard deviation)",
                "check the weights before the first step, loaded ones above all: all(torch.isfinite(p).all() for p in model.parameters())",
            ],
        )
