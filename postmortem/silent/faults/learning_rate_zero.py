from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._updates import ratio, rising, updates
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import SchedulerMade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Stack
    from postmortem.silent.look import Look

_STEPS = 5
_AT_ONCE = 2
"""A rate that is 0 after so many steps."""
_LONG = 30
_TINY = 1e-6
"""An update of this share of the weights changes them by 0.1 % in 1000 steps."""
_NOTHING = 1e-7
"""No optimizer learns with such a rate, unless its gradients are very large; then its updates are not tiny."""


@fault
class LearningRateZero(BaseFault):
    """The learning rate is 0, or practically 0, for the whole training: a wrong argument or unit, or a schedule that
    never leaves 0.

    How it is found: the learning rate of all parameter groups of an optimizer is 0 at every inspected step, or it is at
    most 1e-7 and each measured update is below 1e-6 of the weights, while there are gradients. Or it is 0 from the
    second or third step to the end of the program.

    Not blamed: one of several rates that the program tries; a warm-up that begins at 0; only some groups with a rate of
    0; a rate that falls to 0 at the end.

    What to do: print the learning rate that the optimizer actually uses; step the scheduler that should raise it.

    How to confirm: print `optimizer.param_groups[0]["lr"]` right before `step()`, at several steps.
    """

    code = "TRN030"
    name = "learning-rate-zero"
    family = "optimizer-config"
    checks = "the learning rate is not 0"
    trial = Trial("a learning rate of 0.001 where it is 0", changes.with_a_rate)

    def seen(self, look: Look) -> str:
        return "rates of " + _seen.between(rate for o in look.stepped for _, rate in look.rates(o))

    def blames(self, look: Look) -> Iterator[Blame]:
        judged = False
        for optimizer, steps in look.stepped.items():
            seen = look.rates(optimizer)
            graded = [s for s in steps if s.norm > 0]
            if not seen or len(graded) < _STEPS or self._may_rise(look, optimizer):
                continue
            judged = True
            highest = max(rate for _, rate in seen)
            largest = max((ratio(u) for u in updates(look, optimizer)), default=1.0)
            fell = next((step for step, rate in seen if rate == 0), None) if look.ended else None
            if fell is not None and 0 < fell <= _AT_ONCE and seen[-1][0] == fell and len(steps) >= _LONG:
                yield self._fell(look, optimizer, fell, highest)
            if self._tried_others(look, optimizer):
                continue
            if highest > _NOTHING or largest > _TINY or (highest and seen[-1][1] > seen[0][1]):
                continue
            yield self.blame(
                _where(look, optimizer),
                f"the learning rate of this {look.optimizers[optimizer].type} was at most {highest:.3g} in all "
                f"{count(len(steps), 'step')}; its largest measured update is {largest:.2g} of the weights, with "
                f"gradients of norm {graded[0].norm:.3g}",
                confirm='print optimizer.param_groups[0]["lr"] right before step()',
                highest=highest,
                largest_update=largest,
                steps=len(steps),
            )
        if not judged:
            raise NotChecked(f"fewer than {_STEPS} steps with a gradient and a known learning rate were seen")

    def _fell(self, look: Look, optimizer: int, step: int, highest: float) -> Blame:
        """A schedule that is 0 after the first steps."""
        return self.blame(
            _where(look, optimizer),
            f"the learning rate of this {look.optimizers[optimizer].type} was {highest:.3g} for "
            f"{count(step, 'step')} and 0 at all others of {look.steps}",
            confirm='print optimizer.param_groups[0]["lr"] right before step()',
            highest=highest,
            steps=look.steps,
        )

    def _tried_others(self, look: Look, optimizer: int) -> bool:
        """The same line made another optimizer with a rate: the program searches for a good one."""
        at = look.optimizers[optimizer].stack[:1]
        alike = [o for o, made in look.optimizers.items() if made.stack[:1] == at and o != optimizer]
        return any(rate > _NOTHING for o in alike for _, rate in look.rates(o))

    def _may_rise(self, look: Look, optimizer: int) -> bool:
        """A schedule per epoch may begin at 0, and the look may have ended before its first step."""
        scheduled = any(s.optimizer == optimizer for s in look.of(SchedulerMade))
        return rising(look, optimizer) or (scheduled and not look.ended)


def _where(look: Look, optimizer: int) -> Stack:
    made = next(o for o in look.optimizers.values() if o.optimizer == optimizer)
    first = max((float(group.get("lr", 0.0)) for group in made.groups), default=0.0)
    scheduler = next((s for s in look.of(SchedulerMade) if s.optimizer == optimizer), None)
    return scheduler.stack if scheduler is not None and first > _NOTHING else made.stack
