from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import clip, lower_rate, number, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, consequences, faults, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Divergence:
    """The loss turned and climbed (or leapt and did not come back), and neither the learning rate nor a resume explains it."""

    name = "diverged"
    priority = 50

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        root = next(iter(faults(view, findings)), None)
        if root is None or root.name not in BLOW_UP:
            return None
        rate = rate_at(view, root.step)
        others = consequences(findings, root)
        steady = [f"{rate.tag} was {number(rate.at)} at the onset and had not risen"] if rate is not None else []
        return tell(
            view,
            "diverged",
            root,
            others,
            summary=f"The training diverged: {root.message}.",
            evidence_for=[f.message for f in others[:3]],
            against=steady,
            disprove=[
                "the same steps from the last good checkpoint at a third of the learning rate diverge in the same way: then look at data and loss"
            ],
            advice=[
                lower_rate(view, rate),
                *filter(None, [clip(view, root.step)]),
                "look at what changed at the onset: data shard, loss weights, phase of the training",
            ],
        )
