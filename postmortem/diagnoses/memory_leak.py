from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import has_errors, named, tell

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
        out = [f for f in findings if f.name == "crash" and (exhausted or "memory" in f.message.lower() or "Killed" in f.message)]
        if has_errors(findings) and not out:
            return None
        return tell(
            view,
            "memory-leak",
            root,
            out,
            summary=f"{root.message}" + (f", until it ran out: {out[0].message}." if out else "; it will run out if the training goes on."),
            evidence_for=[f.message for f in out[:2]],
            against=[] if out else ["the run did not run out of memory in this log"],
            disprove=["the memory levels off when the run goes on: a cache that fills"],
            advice=[
                "keep loss.item(), not loss: whatever is kept with its graph keeps all activations",
                "torch.cuda.memory._record_memory_history(), or tracemalloc for the host",
            ],
            replay=False,
        )
