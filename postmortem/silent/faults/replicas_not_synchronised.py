from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import rank_changes
from postmortem.silent.facts import Backward, Forward
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._ranks import compared, ranks_of
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Collective, Wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_STEPS = 4


@fault
class ReplicasNotSynchronised(BaseFault):
    """Gradients are not averaged over the ranks, so the replicas drift apart: each trains on its own part of the data.

    How it is found: ranks have equal weights at the first step, different gradients there, and different weights at all
    later measured steps, although the program wraps the model in DistributedDataParallel or exchanges tensors at nearly
    every step.

    Not blamed: ranks that are synchronised now and then (local SGD); sharded or split models; processes that only share
    a process group; gradients that are accumulated under no_sync before the step.

    What to do: call the wrapper and not `model.module`; average gradients after backward and before the step.

    How to confirm: print a checksum of the weights on each rank after some steps.
    """

    code = "TRN072"
    name = "replicas-not-synchronised"
    family = "distributed"
    checks = "the ranks keep the same weights"
    trial = Trial("gradients averaged over the ranks before each step", rank_changes.averaged_over_ranks, by="fault")

    def across(self, looks: Sequence[Look]) -> Iterator[Blame]:
        first, *others = ranks_of(looks)
        steps = [s for other in others for s in compared(first, other)]
        if len({s.step for s in steps}) < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} steps of two ranks with the same parameters were measured")
        start = min(s.step for s in steps)
        begins, later = [s for s in steps if s.step == start], [s for s in steps if s.step > start]
        if any(s.weights for s in begins) or not all(s.weights for s in later) or not all(s.gradients for s in begins):
            return
        if not first.of(Wrapped) and not _exchanges(first):
            return
        last = later[-1]
        yield self.blame(
            _where(first),
            f"{last.weights} of {last.parameters} parameters differ between ranks at step {last.step} (none at step "
            f"{start}), and so do {begins[0].gradients} gradients at step {start}: they are not averaged",
            confirm="print a checksum of the weights on each rank after some steps",
            differ=last.weights,
            parameters=last.parameters,
            step=last.step,
        )


def _exchanges(look: Look) -> bool:
    steps = {c.step for c in look.of(Collective)}
    seen = {s.step for s in look.stepped[look.busiest]}
    return len(steps & seen) >= 0.9 * len(seen)


def _where(look: Look) -> Place | None:
    """Where the model is called without its wrapper, else the backward pass."""
    calls = [f for f in look.of(Forward) if f.grad and f.parameters]
    wrapped = [f for f in calls if f.root in look.modules and look.modules[f.root].type == "DistributedDataParallel"]
    backwards = [b.at for b in look.of(Backward) if b.at is not None]
    if look.of(Wrapped) and calls and not wrapped:
        return calls[0].at
    return backwards[0] if backwards else None
