from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_UNTIMED = "no data loading time is logged: the step time alone cannot tell what it waited for"


@diagnosis
class InputPipeline:
    """The training waits: for data, for a slow rank, or for a machine that lost its pace."""

    name = "input-pipeline"
    priority = 78

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        slow = named(findings, "dataloader-stall", "straggler-rank", "throughput-drop")
        if not slow or has_errors(findings):
            return None
        root = next((f for f in slow if f.name == "dataloader-stall"), slow[0])
        name = {"dataloader-stall": "input-pipeline", "straggler-rank": "straggler", "throughput-drop": "slowdown"}[
            root.name
        ]
        advice = {
            "input-pipeline": [
                "more workers and prefetching; time __getitem__ by sample; keep the data on local disk",
                "persistent_workers=True, where stalls come once per epoch",
            ],
            "straggler": [f"look at the node of rank {root.rank}: clocks, temperature, other jobs, disk"],
            "slowdown": [
                "look at GPU clocks and temperature, other jobs on the node, storage and network from that step on",
                "did batch size or sequence length change?",
            ],
        }[name]
        others = [f for f in slow if f is not root]
        return (
            Story(view, root, others)
            .because(*(f.message for f in others))
            .against(_UNTIMED if name == "input-pipeline" and not view.of("data_time") else None)
            .disproved_by("a profile of one slow step shows the GPU busy all the time")
            .advise(*advice)
            .diagnosis(name, f"{root.message}.")
        )
