from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import rank_changes
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._ranks import compared, ranks_of
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look

_STEPS = 3


@fault
class ReplicasStartDifferent(BaseFault):
    """Ranks start from different weights, so the averaged gradients come from different models.

    How it is found: at each measured step all gradients of two ranks are equal, so they are averaged, while weights of
    the same parameters differ from the first step on.

    Not blamed: ranks whose gradients differ too (parts of one model, or independent trainings).

    What to do: broadcast the weights of rank 0 before the first step, as DistributedDataParallel does; use the same
    seed on all ranks while the model is created.

    How to confirm: print a checksum of the weights on each rank before the first step.
    """

    code = "TRN073"
    name = "replicas-start-different"
    family = "distributed"
    checks = "the ranks start with the same weights"
    trial = Trial("the weights of rank 0 sent to all ranks before the first step", rank_changes.begun_alike, by="fault")

    def across(self, looks: Sequence[Look]) -> Iterator[Blame]:
        first, *others = ranks_of(looks)
        steps = [s for other in others for s in compared(first, other)]
        if len({s.step for s in steps}) < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} steps of two ranks with the same parameters were measured")
        if any(s.gradients for s in steps) or not all(s.weights for s in steps):
            return
        yield self.blame(
            _made(first),
            f"{steps[0].weights} of {steps[0].parameters} parameters differ between ranks at step {steps[0].step}, "
            f"while all gradients are equal in {len(steps)} comparisons: gradients of different models are averaged",
            confirm="print a checksum of the weights on each rank before the first step",
            differ=steps[0].weights,
            parameters=steps[0].parameters,
        )


def _made(look: Look) -> Place | Stack | None:
    """Where the model was made: out of the constructors of its parts."""
    held = look.held_by(look.busiest)
    stack = next((look.parameters[p].made for p in held if look.parameters[p].made), ())
    return next((place for place in stack if not place.function.endswith("__init__")), None) or stack
