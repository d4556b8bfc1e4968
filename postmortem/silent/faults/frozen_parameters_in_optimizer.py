from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent.facts import Gradients
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count, few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STEPS = 3


@fault
class FrozenParametersInOptimizer(BaseFault):
    """All parameters of an optimizer are frozen (`requires_grad=False`), so its steps change nothing.

    How it is found: an optimizer steps repeatedly, and none of its parameters requires a gradient.

    Not blamed: an optimizer with only some frozen parameters; the others are updated as usual.

    What to do: freeze the layers that should stay fixed, not those passed to the optimizer.

    How to confirm: print `[p.requires_grad for p in optimizer.param_groups[0]["params"]]` before the loop.
    """

    code = "TRN004"
    name = "frozen-parameters-in-optimizer"
    family = "gradient-flow"
    checks = "the optimizers hold parameters that can be trained"

    def blames(self, look: Look) -> Iterator[Blame]:
        if not look.of(Gradients):
            raise NotChecked("no step of an optimizer was seen")
        for optimizer, steps in look.stepped.items():
            held = look.held_by(optimizer)
            seen = [g for g in look.of(Gradients) if g.optimizer == optimizer]
            if len(seen) < _STEPS or not held or any(set(held) - set(g.frozen) for g in seen):
                continue
            yield self.blame(
                look.optimizers[optimizer].stack,
                f"all {count(len(held), 'parameter')} of this {look.optimizers[optimizer].type} "
                f"({few([look.name(p) for p in held])}) have requires_grad=False: {count(len(steps), 'step')} changed "
                "nothing",
                confirm="print p.requires_grad of the parameters in optimizer.param_groups",
                parameters=len(held),
                steps=len(steps),
            )
