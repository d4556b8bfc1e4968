"""Tells the story of a reward that collapsed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.plugins import Story, diagnosis

if TYPE_CHECKING:
    from postmortem.plugins import Diagnosis, Finding, View


@diagnosis
class PolicyCollapse:
    """The policy lost what it had learnt: the reward fell and did not come back."""

    name = "policy-collapse"
    priority = 60

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        """The story where the reward collapsed; else None."""
        root = next((f for f in findings if f.name == "reward-collapse"), None)
        if root is None:
            return None
        return (
            Story(view, root)
            .because(f"the best reward was {root.evidence['best']:.4g}")
            .disproved_by("the task was made harder at that step")
            .advise("resume from weights saved before, with a lower learning rate")
            .diagnosis(PolicyCollapse.name, f"The policy collapsed at step {root.step}: {root.message}.")
        )
