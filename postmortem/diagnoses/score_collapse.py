from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_checkpoint
from postmortem.diagnoses.shared.story import Story, has_errors, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_LOST = 0.2
"""Share of the entropy of the first updates below which a policy hardly explores."""


@diagnosis
class ScoreCollapse:
    """The training unlearned what it had learned: a reward rose, fell again and stayed low to the end of the log."""

    name = "score-collapse"
    priority = 75

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in named(findings, "score-collapse") if f.severity != "info" and role(view, f) == "reward"]
        if not found or has_errors(findings):
            return None
        root = found[0]
        best = None if root.step is None else last_good_checkpoint(view, root.step)
        where = f"restart from {best.path} (step {best.step})" if best is not None else "restart from before that step"
        entropy = _entropy(view, root.step or 0)
        unknown = "" if "; " in root.message else " The log does not show why."
        return (
            Story(view, root)
            .last_good(before=root.step)
            .because(entropy)
            .disproved_by("the task, the reward or the opponents changed at that step")
            .advise(
                f"{where}, with a lower learning rate or a smaller clip range, or a penalty on the KL divergence",
                "raise the weight of the entropy, or lower it later" if entropy else None,
                "look at what the policy does before and after the fall: it may have found a way to a reward "
                "that the later updates do not give any more",
            )
            .diagnosis(
                "score-collapse",
                f"The policy lost what it had learned: {root.message}.{unknown}",
                "possible",
            )
        )


def _entropy(view: View, step: int) -> str | None:
    """In words: the entropy of the policy, where one is logged and lies far below its first level from then on."""
    for series in (s.finite for s in view.series if "entropy" in s.tag.lower() and s.role is None):
        size, after = np.abs(series.value), series.step >= step
        first = median(size[: max(3, len(size) // 20)]) if len(size) else 0.0
        if after.any() and median(size[after]) < _LOST * first:
            return (
                f"{series.tag} is about {number(median(series.value[after]), 3)} from then on, after "
                f"{number(float(series.value[0]), 3)} at the start: the policy hardly explores"
            )
    return None
