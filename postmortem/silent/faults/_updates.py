"""What several faults ask about the updates of an optimizer."""

from __future__ import annotations

from math import hypot
from statistics import mean
from typing import TYPE_CHECKING

from postmortem.silent.facts import Backward
from postmortem.silent.weight_facts import Updated

if TYPE_CHECKING:
    from postmortem.silent.look import Look

SCALE_FREE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adafactor"}
_FEW = 5


def rising(look: Look, optimizer: int) -> bool:
    """The look was over before the rate stopped to rise: a warm-up."""
    seen = look.rates(optimizer)
    return not look.ended and len(seen) > 1 and seen[-1][1] == max(r for _, r in seen) > seen[0][1]


def updates(look: Look, optimizer: int, share: float = 0.5) -> list[Updated]:
    """The updates that were measured at `share` of the highest learning rate or more."""
    seen = look.rates(optimizer)
    if not seen:
        return []
    least = share * max(r for _, r in seen)
    mine = [u for u in look.of(Updated) if u.optimizer == optimizer]
    return [u for u in mine if next((r for s, r in reversed(seen) if s <= u.step), 0.0) >= least]


def ratio(update: Updated) -> float:
    """Norm of the update / norm of the weights, of all parameters together."""
    weights = hypot(*update.weights.values())
    return hypot(*update.changes.values()) / weights if weights else 0.0


def losses(look: Look, optimizer: int) -> tuple[float, float] | None:
    """Means of the first and of the last losses while an optimizer was in use; None if there are too few."""
    begin, end = look.span(optimizer)
    seen = [b.loss for b in look.of(Backward) if b.loss is not None and begin <= b.step <= end]
    return (mean(seen[:_FEW]), mean(seen[-_FEW:])) if len(seen) >= 4 * _FEW else None
