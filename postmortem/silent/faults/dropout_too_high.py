from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.facts import Backward, Dropped, ModeMatters, ModuleRan
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._modes import trained_roots
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look

_HIGH = 0.75
_STEPS = 30
_FALL = 0.5
"""A training that halves its loss gets through its dropout."""


@fault
class DropoutTooHigh(BaseFault):
    """The dropout probability is so high that little of the signal passes, often because the keep probability was
    passed.

    How it is found: dropout with a probability of 0.75 or more is active in training, and the training loss does not
    fall by half.

    Not blamed: a high probability in a training that learns.

    What to do: `nn.Dropout(p)` takes the probability of zeroing an element; 0.1 to 0.5 is usual.

    How to confirm: train a few epochs with `1 - p`.
    """

    code = "TRN022"
    name = "dropout-too-high"
    family = "train-eval-mode"
    checks = "dropout leaves enough of the signal"
    trial = Trial("no dropout", changes.without_dropout)

    def seen(self, look: Look) -> str:
        return _seen.some([m for m in look.of(ModeMatters) if m.dropout] + look.of(Dropped), "dropout", "dropouts")

    def blames(self, look: Look) -> Iterator[Blame]:
        losses = [b.loss for b in look.of(Backward) if b.loss is not None]
        if len(losses) < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} losses were seen")
        high = list(_high(look))
        first, last = fmean(losses[:5]), fmean(losses[-8:])
        if not high or last < _FALL * first:
            return
        probability, at = max(high, key=lambda each: each[0])
        yield self.blame(
            at,
            f"{count(len(high), 'dropout')} with p up to {probability:g} were active in training: {probability:.0%} of "
            f"the values become 0; the training loss went from {first:.3g} to {last:.3g} in "
            f"{count(look.steps, 'step')}",
            confirm=f"train a few epochs with p={1 - probability:.2g}",
            dropout=probability,
            first_loss=first,
            last_loss=last,
        )


def _high(look: Look) -> Iterator[tuple[float, Stack | Place | None]]:
    roots = trained_roots(look)
    training = {r.module for r in look.of(ModuleRan) if r.training and r.grad}
    for each in look.of(ModeMatters):
        if each.dropout >= _HIGH and each.root in roots and each.module in training:
            yield each.dropout, each.made
    for drop in look.of(Dropped):
        if drop.dropout >= _HIGH and drop.root in roots and drop.training and drop.grad:
            yield drop.dropout, drop.at
