from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, Any

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._updates import SCALE_FREE, losses
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial, at_steps
from postmortem.silent.weight_facts import Updated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STEPS = 20
_DECOUPLED = {"AdamW"}
_LIMITS = ((0.1, 0.5), (0.3, 0.8))
"""(share of the weights' norm that is left, share of the first loss that is left)."""


def _no_decay(optimizer: Any) -> bool:
    decayed = [group for group in optimizer.param_groups if group.get("weight_decay")]
    for group in decayed:
        group["weight_decay"] = 0.0
    return bool(decayed)


@fault
class WeightDecayTooHigh(BaseFault):
    """Weight decay is so strong that the weights shrink towards zero and the output becomes constant.

    How it is found: the norm of the decayed weight matrices falls below 10 % of its value at the first step while the
    loss keeps half of its first value (or 30 % and 80 %), and the decay is large enough to cause this: its term exceeds
    half of the gradient at the first steps (optimizers with L2), or rate times decay times steps exceeds 1.

    Not blamed: decay that is balanced by the gradients; weights that shrink while the loss falls.

    What to do: a smaller decay; AdamW instead of the `weight_decay` of Adam.

    How to confirm: print the norm of a weight at each epoch, and compare with `weight_decay=0`.
    """

    code = "TRN033"
    name = "weight-decay-too-high"
    family = "optimizer-config"
    checks = "weight decay does not shrink the weights to nothing"
    trial = Trial("weight_decay=0", at_steps(_no_decay))

    def seen(self, look: Look) -> str:
        return _seen.some(
            [g for o in look.optimizers.values() for g in o.groups if g.get("weight_decay", 0) > 0],
            "parameter group with weight decay",
            "parameter groups with weight decay",
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        if look.steps < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} steps were seen")
        for optimizer in look.stepped:
            went = losses(look, optimizer)
            decay, held = _decayed(look, optimizer)
            mine = [u for u in look.of(Updated) if u.optimizer == optimizer]
            if not held or len(mine) < 2 or went is None:
                continue
            first, last = (hypot(*(u.weights.get(str(p), 0.0) for p in held)) for u in (mine[0], mine[-1]))
            shrunk, kept = last / first if first else 1.0, went[1] / went[0] if went[0] > 0 else 0.0
            if not any(shrunk < w and kept > k for w, k in _LIMITS) or not _strong(look, optimizer, decay, first):
                continue
            yield self.blame(
                look.optimizers[optimizer].stack,
                f"with weight_decay={decay:g} the norm of the weights fell from {first:.3g} to {last:.3g} "
                f"in {count(look.steps, 'step')}, while the loss went from "
                f"{went[0]:.3g} to {went[1]:.3g}",
                confirm="print the norm of a weight at each epoch, and compare with weight_decay=0",
                weight_decay=decay,
                first_norm=first,
                last_norm=last,
                steps=look.steps,
            )


def _decayed(look: Look, optimizer: int) -> tuple[float, list[int]]:
    """The largest decay of its groups, and the matrices that decay."""
    groups = [g for g in look.optimizers[optimizer].groups if g.get("weight_decay", 0) > 0]
    held = [p for g in groups for p in g["parameters"] if len(look.parameters[p].shape) > 1]
    return max((float(g["weight_decay"]) for g in groups), default=0.0), held


def _strong(look: Look, optimizer: int, decay: float, norm: float) -> bool:
    """Whether the decay can have shrunk the weights in these steps."""
    kind, seen = look.optimizers[optimizer].type, look.rates(optimizer)
    if kind in SCALE_FREE - _DECOUPLED:
        early = [s.norm for s in look.stepped[optimizer][:3]]
        return decay * norm > 0.5 * max(early, default=0.0)
    begin, end = look.span(optimizer)
    return bool(seen) and max(rate for _, rate in seen) * decay * (end - begin) > 1
