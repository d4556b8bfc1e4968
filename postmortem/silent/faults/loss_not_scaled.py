from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Cycle, Look

_STEPS = 5


@fault
class LossNotScaled(BaseFault):
    """A GradScaler steps on gradients of a loss that was not scaled, and still divides them by its scale.

    How it is found: `scaler.step(optimizer)` is called with a scale above 1, and none of the backward passes before it
    started from the result of `scaler.scale(loss)`.

    Not blamed: a disabled scaler; several losses of which some are scaled.

    What to do: `scaler.scale(loss).backward()`.

    How to confirm: print the norm of a gradient right before `scaler.step` and right after `scaler.unscale_`.
    """

    code = "TRN036"
    name = "loss-not-scaled"
    family = "precision"
    checks = "a GradScaler steps on gradients of scaled losses"
    trial = Trial("steps with the gradients as they are, not divided by the scale", changes.without_scale)

    def seen(self, look: Look) -> str:
        return _seen.of(look, Scaling, "call of a GradScaler", "calls of a GradScaler")

    def blames(self, look: Look) -> Iterator[Blame]:
        stepping = [s for s in look.of(Scaling) if s.action == "step" and s.scale > 1]
        for optimizer in sorted({s.optimizer for s in stepping if s.optimizer is not None}):
            cycles = [c for c in look.cycles(optimizer) if c.of(Backward)]
            if len(cycles) < _STEPS:
                raise NotChecked(f"fewer than {_STEPS} steps of a GradScaler were seen")
            plain = [c for c in cycles if not _scaled(c)]
            if len(plain) < 0.9 * len(cycles) or len(plain) < _STEPS:
                continue
            yield self.blame(
                plain[0].of(Backward)[-1].at or plain[0].step.at,
                f"at {len(plain)} of {count(len(cycles), 'step')} the scaler divided the gradients by its scale "
                f"({stepping[0].scale:g}), although backward started from a loss that was not scaled",
                confirm="print the norm of a gradient before scaler.step and after scaler.unscale_",
                scale=stepping[0].scale,
                steps=len(plain),
            )


def _scaled(cycle: Cycle) -> bool:
    return any(s.action == "backward" for s in cycle.of(Scaling))
