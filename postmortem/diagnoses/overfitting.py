from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_checkpoint
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Overfitting:
    """The model memorises the training set: the validation loss has passed its best value and rises."""

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
        where = "save the best weights by validation loss"
        if best is not None:
            where = f"use {best.path} (step {best.step})"
        known = "train_end" in values
        train = (
            f"training loss {number(values['train_at_best'], 3)} → {number(values['train_end'], 3)}" if known else ""
        )
        held_out = f"validation loss {number(values['best'], 3)} → {number(values['end'], 3)}"
        return (
            Story(view, root)
            .last_good(before=None if root.step is None else root.step + 1)
            .because(", ".join(filter(None, (train, held_out))))
            .disproved_by(
                "training and validation data come from different sources (then it is a data shift, not overfitting)"
            )
            .advise(
                f"stop at step {root.step}; {where}",
                _about_accuracy(values["accuracy_end"]) if "accuracy_end" in values else None,
                "more data or augmentation, dropout, weight decay",
                None if known else "log the training loss too: if it falls on, the model overfits, else it diverges",
            )
            .diagnosis(
                "overfitting",
                f"The model overfits after step {root.step}: {root.message}.",
                "likely" if known else "possible",
            )
        )


def _course(name: str, then: float, now: float) -> str:
    return f"{name} {number(then, 3)} → {number(now, 3)}"


def _about_accuracy(end: float) -> str:
    confident = "if it still improves, confident mistakes make the loss rise; try label smoothing"
    return f"the accuracy ends at {number(end, 3)}: {confident}"
