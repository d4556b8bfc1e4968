from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward, Forward
from postmortem.silent.faults import BaseFault, NotChecked, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Cycle, Look

_STEPS = 5


@fault
class StepBeforeBackward(BaseFault):
    """`optimizer.step()` runs before `backward()` of the same batch: it uses the gradients of the previous batch, or
    none if they are cleared in between.

    How it is found: after a step, a backward pass begins although no forward pass ran since the step: its loss belongs
    to a forward pass before the step.

    Not blamed: several backward passes in one step; two optimizers that share a forward pass, if there are gradients at
    the step.

    What to do: `loss.backward()`, then `optimizer.step()`.

    How to confirm: print `p.grad is None` right before `step()` in the first iterations.
    """

    code = "TRN008"
    name = "step-before-backward"
    family = "step-order"
    checks = "backward runs before the step of the same batch"
    trial = Trial("each step after the next backward pass", changes.stepped_after_backward)

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for optimizer in look.stepped:
            cycles = list(look.cycles(optimizer))
            judged = judged or len(cycles) >= _STEPS
            late = [c for c in cycles if _behind(c)]
            if len(cycles) < _STEPS or len(late) < 0.9 * len(cycles):
                continue
            empty = sum(c.step.none + c.step.zero == c.step.parameters for c in cycles)
            if len(look.stepped) > 1 and empty < 0.9 * len(cycles):
                continue
            found = "found no gradient" if empty > 0.9 * len(cycles) else "used the gradients of the previous batch"
            yield self.blame(
                late[0].step.at,
                f"at {len(late)} of {count(len(cycles), 'step')} backward ran after the step, without a forward pass "
                f"in between: the steps {found}",
                confirm="print whether p.grad is None right before step()",
                steps=len(cycles),
                late=len(late),
                without_gradient=empty,
            )
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} steps were seen")


def _behind(cycle: Cycle) -> bool:
    """The first thing after a step is a backward pass, and the last model before the next step ran after it."""
    kinds = [type(f) for f in cycle.between if isinstance(f, Backward) or (isinstance(f, Forward) and f.grad)]
    return bool(kinds) and kinds[0] is Backward and kinds[-1] is Forward
