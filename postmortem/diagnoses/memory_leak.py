from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class MemoryLeak:
    """Memory use grew until memory ran out (likely the cause), or is still growing (a possible leak)."""

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
        ran_out = (
            f", until memory ran out: {out[0].message}." if out else "; memory may run out if the training continues."
        )
        return (
            Story(view, root, out)
            .because(*(f.message for f in out[:2]))
            .against(None if out else "this log shows no out-of-memory failure")
            .disproved_by("memory use levels off if the run continues (a cache that fills up)")
            .advise(
                "store loss.item(), not loss: a stored tensor keeps its graph, and the graph keeps all activations",
                "record allocations with torch.cuda.memory._record_memory_history(), or tracemalloc for host memory",
            )
            .diagnosis("memory-leak", f"{root.message}{ran_out}", "likely" if out else "possible")
        )
