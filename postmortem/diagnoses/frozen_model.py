from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import has_errors, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class FrozenModel:
    """The weights do not change, or the model answers the same for every input, although the learning rate is alive."""

    name = "frozen-model"
    priority = 74

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        still = named(findings, "loss-plateau", "chance-level-loss", "constant-metric")
        if not still or has_errors(findings):
            return None
        root = still[0]
        chance = [f for f in still if f.name == "chance-level-loss"]
        stale = all(f.name == "constant-metric" for f in still)
        if stale:
            cause = "Either it is not computed anew, or nothing in the model changes"
            disprove = "the metric changes when it is computed by hand from the checkpoint"
            advice = [
                "print the inputs of the metric at two steps",
                "compare the weights of two checkpoints: equal means frozen, different means a stale metric",
            ]
        else:
            cause = "The model guesses" if chance else "The weights do not change, or no longer help"
            disprove = "the weights of two checkpoints after the onset differ"
            advice = [
                "count the parameters that require gradients and are in the optimizer",
                "overfit one batch: a model that cannot is wired wrongly",
                "look at the gradient norm per layer",
            ]
        return tell(
            view,
            "stale-metric" if stale else "constant-predictor" if chance else "no-learning",
            root,
            [f for f in still if f is not root],
            summary=f"{root.message}. {cause}.",
            evidence_for=[f.message for f in still if f is not root][:3],
            disprove=[disprove],
            advice=advice,
            replay=False,
        )
