from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Restart:
    """The run was restarted and continued; nothing else is wrong with it."""

    name = "restarted"
    priority = 90

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        resets = named(findings, "step-reset")
        if not resets or has_errors(findings):
            return None
        root = resets[0]
        from_the_start = root.evidence["after"] <= (view.first_step or 0)
        return (
            Story(view, root, resets[1:])
            .because(*(r.message for r in resets[1:3]))
            .disproved_by("two jobs wrote into the same log at the same time")
            .advise(
                "if it was meant to resume: the step counter started from the beginning; "
                "check that the checkpoint was found and its step loaded"
                if from_the_start
                else None,
                "give each restart its own folder or run id",
            )
            .diagnosis(
                "restarted",
                f"The run was restarted: {root.message}. Overwritten points are not judged.",
            )
        )
