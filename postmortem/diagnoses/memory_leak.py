from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class MemoryLeak:
    """Memory grew until there was none left, or is on its way there."""

    name = "memory-leak"
    priority = 60

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        grown = named(findings, "memory-growth")
        if not grown:
            return None
        root = grown[0]
        exhausted = view.run.ended == "out-of-memory"
        crashes = [f for f in findings if f.name == "crash"]
        out = [f for f in crashes if exhausted or "memory" in f.message.lower() or "Killed" in f.message]
        if has_errors(findings) and not out:
            return None
        ran_out = f", until it ran out: {out[0].message}." if out else "; it will run out if the training goes on."
        return (
            Story(view, root, out)
            .because(*(f.message for f in out[:2]))
            .against(None if out else "the run did not run out of memory in this log")
            .disproved_by("the memory levels off when the run goes on: a cache that fills")
            .advise(
                "keep loss.item(), not loss: whatever is kept with its graph keeps all activations",
                "torch.cuda.memory._record_memory_history(), or tracemalloc for the host",
            )
            .diagnosis("memory-leak", f"{root.message}{ran_out}")
        )
