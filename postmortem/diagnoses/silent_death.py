from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import has_errors, named, sentence, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class SilentDeath:
    """The log ends in the middle of the training and nothing says why."""

    name = "silent-death"
    priority = 85

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "silent-death")
        if not found or has_errors(findings):
            return None
        root = found[0]
        grown = named(findings, "memory-growth")
        return tell(
            view,
            "silent-death",
            root,
            summary=f"{sentence(root.message)}: no error, no message of a scheduler. It was killed from outside, it seems.",
            evidence_for=[f.message for f in grown],
            disprove=["another file (the .err of the job, the log of another rank) ends later or tells more"],
            advice=["sacct -j JOB --format=State,ExitCode,MaxRSS,Elapsed; dmesg -T | grep -i kill on the node", "resume from the newest checkpoint"],
            replay=False,
        )
