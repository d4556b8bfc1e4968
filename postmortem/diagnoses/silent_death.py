from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named, sentence

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class SilentDeath:
    """The log ends in the middle of the training, without a reason: the process may have been killed, or it still runs,
    or the rest of the log was not copied."""

    name = "silent-death"
    priority = 85

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "silent-death")
        if not found or has_errors(findings):
            return None
        root = found[0]
        died = f"{sentence(root.message)}: no error and no message of a scheduler."
        return (
            Story(view, root)
            .after_the_log()
            .because(*(f.message for f in named(findings, "memory-growth")))
            .disproved_by("another file (the .err of the job, the log of another rank) ends later or shows a reason")
            .advise(
                "see how a Slurm job ended: `sacct -j JOB --format=State,ExitCode,MaxRSS,Elapsed`",
                "on its node, see whether the kernel killed it: `dmesg -T | grep -i 'killed process'`",
                "resume from the newest checkpoint",
            )
            .diagnosis(
                "silent-death",
                f"{died} The process may have been killed from outside or may still be running, "
                "or the log is incomplete.",
            )
        )
