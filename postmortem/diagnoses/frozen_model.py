from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class FrozenModel:
    """The weights may not change, or the model may predict the same for every input, although the learning rate is not
    zero. Only a possible cause: the weights of two checkpoints show it, the log does not.

    Called stale-metric if only some metrics never change, constant-predictor if the loss is at chance level, and
    no-learning if the loss is flat from the start for another reason.
    """

    name = "frozen-model"
    also = ("stale-metric", "constant-predictor", "no-learning")
    priority = 74

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        still = named(findings, "loss-plateau", "chance-level-loss", "constant-metric")
        if not still or has_errors(findings):
            return None
        root = still[0]
        others = [f for f in still if f is not root]
        if all(f.name == "constant-metric" for f in still):
            name = "stale-metric"
            cause = "Either the metric is not recomputed, or nothing in the model changes"
            disprove = "the metric changes if it is computed by hand from the checkpoint"
            advice = [
                "print the inputs of the metric at two different steps",
                "compare the weights of two checkpoints: if equal, the model is frozen; if not, the metric is stale",
            ]
        else:
            guesses = any(f.name == "chance-level-loss" for f in still)
            name = "constant-predictor" if guesses else "no-learning"
            cause = (
                "A model at chance level logs such values"
                if guesses
                else "Either the weights do not change, or their changes do not help"
            )
            disprove = "the loss is already as low as the data allow"
            advice = [
                "compare the weights of two checkpoints: if equal, no update reaches them; "
                "if not, the updates do not help",
                "count the parameters that require gradients and are in the optimizer",
                "overfit a single batch: if that fails, the model or the training loop has a bug",
                "check the gradient norm per layer",
            ]
        return (
            Story(view, root, others)
            .because(*[f.message for f in others][:3])
            .disproved_by(disprove)
            .advise(*advice)
            .diagnosis(name, f"{root.message}. {cause}.")
        )
