from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_checkpoint
from postmortem.diagnoses.shared.schedule import number
from postmortem.diagnoses.shared.story import has_errors, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Overfitting:
    """The model learns the training set by heart: the validation loss has its best behind it."""

    name = "overfitting"
    priority = 76

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "overfitting")
        if not found or has_errors(findings):
            return None
        root = found[0]
        values = root.evidence
        best = last_good_checkpoint(view, root.step)
        where = f"its weights: {best.path} (step {best.step})" if best is not None else "save the best weights by validation loss"
        advice = [f"stop at step {root.step}; {where}"]
        if "accuracy_end" in values:
            score = number(values["accuracy_end"])
            advice.append(f"the accuracy ends at {score}: if it still improves, confident mistakes make the loss rise; try label smoothing")
        train = f"{number(values['train_at_best'])} → {number(values['train_end'])}"
        held_out = f"{number(values['best'])} → {number(values['end'])}"
        return tell(
            view,
            "overfitting",
            root,
            summary=f"Best at step {root.step}, worse since: {root.message}.",
            evidence_for=[f"training loss {train}, validation loss {held_out}"],
            disprove=["training and validation data come from different sources: then it is a shift, not overfitting"],
            advice=[*advice, "more data or augmentation, dropout, weight decay"],
            replay=False,
            good_before=None if root.step is None else root.step + 1,
        )
