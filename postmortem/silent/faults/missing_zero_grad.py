from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Backward
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, at_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STEPS = 5


def _clear(optimizer: Any) -> bool:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    return True


@fault
class MissingZeroGrad(BaseFault):
    """Gradients are never cleared between optimizer steps: each step uses the sum of all gradients so far.

    How it is found: there are backward passes between consecutive optimizer steps, but neither zero_grad nor anything
    else clears the gradients in between. Also reported if they are cleared only now and then, such as once per epoch.

    Not blamed: several backward passes before one step, after which the gradients are cleared.

    What to do: call `optimizer.zero_grad()` once per step, before `backward()`.

    How to confirm: print the norm of one gradient before each `backward()`: it should be None or 0.
    """

    code = "TRN006"
    name = "missing-zero-grad"
    family = "step-order"
    checks = "gradients are cleared between steps"
    trial = Trial("gradients cleared after each step", at_steps(_clear, after=True))

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for optimizer in look.stepped:
            cycles = [c for c in look.cycles(optimizer) if c.of(Backward)]
            if len(cycles) < _STEPS:
                continue
            judged = True
            kept = [c for c in cycles if not c.step.cleared]
            if len(kept) < max(_STEPS, 0.5 * len(cycles)):
                continue
            first, last = kept[0].step, kept[-1].step
            yield self.blame(
                kept[0].of(Backward)[-1].at or first.at,
                f"at {len(kept)} of {count(len(cycles), 'step')} backward added to the gradients of the previous "
                f"step; the norm of their sum went from {first.norm:.3g} to {last.norm:.3g}",
                confirm="print the norm of a gradient before each backward(): it should be None or 0",
                steps=len(cycles),
                not_cleared=len(kept),
                first_norm=first.norm,
                last_norm=last.norm,
            )
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} steps with a backward pass were seen")
