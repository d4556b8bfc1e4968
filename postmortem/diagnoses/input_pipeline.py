from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_UNTIMED = "no data loading time is logged: the step time alone does not show what the step waited for"


@diagnosis
class InputPipeline:
    """The training waits for data, for a slow rank, or for a machine that became slower.

    Waiting for data is a likely cause if loading times are logged, else a possible one. If one rank is slower than the
    others, the diagnosis is called straggler; if all steps take longer and the log does not show why, slowdown.
    """

    name = "input-pipeline"
    also = ("straggler", "slowdown")
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
                "use more workers and prefetching; measure __getitem__ per sample; keep the data on a local disk",
                "set persistent_workers=True if the stalls occur once per epoch",
            ],
            "straggler": [f"check the node of rank {root.rank}: clocks, temperature, other jobs, disk"],
            "slowdown": [
                "check clocks and temperature of the device, other jobs, storage and network from that step on",
                "check whether batch size or sequence length changed",
            ],
        }[name]
        others = [f for f in slow if f is not root]
        untimed = name == "input-pipeline" and not view.of("data_time")
        return (
            Story(view, root, others)
            .because(*(f.message for f in others))
            .against(_UNTIMED if untimed else None)
            .disproved_by("a profile of one slow step shows that the device computes all the time")
            .advise(*advice)
            .diagnosis(name, f"{root.message}.", "possible" if untimed else "likely")
        )
