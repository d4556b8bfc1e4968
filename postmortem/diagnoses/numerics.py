from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses._story import later, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite")


@diagnosis
class Numerics:
    """An operation of the model, the loss or its derivative gave NaN or infinity, and nothing in the log announced it.

    The story that remains where a quantity turned non-finite and neither the learning rate nor the gradients nor the
    loss scale explain it. What the log cannot tell, the replay of the step can.
    """

    name = "numerics"
    priority = 60

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = named(findings, *NONFINITE)
        if not bad:
            return None
        root = bad[0]
        backward = any(f.name == "nonfinite-gradient" and f.step == root.step for f in bad)
        where = "in the backward pass: the loss of the same step is still finite" if backward else "in the forward pass or the data"
        return tell(
            view,
            "numerics",
            root,
            later(findings, root),
            summary=f"{root.message}. The first non-finite value arises {where}.",
            evidence_for=[f.message for f in bad[1:4]],
            disprove=["the replay of the step stays finite: then the fault is not deterministic (hardware, a race) or the batch is another one"],
        )
