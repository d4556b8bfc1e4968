from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from postmortem.silent import changes
from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Clipped, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_STEPS = 3
_CUT = 0.1
_LIMIT = 0.01
"""A limit that is meant for scaled gradients is the scale times one that is not this small."""


@fault
class ClipBeforeUnscale(BaseFault):
    """Gradients are clipped while they still include the loss scale of a GradScaler, so almost nothing is left of them
    after unscaling.

    How it is found: `clip_grad_norm_` or `clip_grad_value_` runs between the backward pass of a scaled loss and the
    step, without `scaler.unscale_(optimizer)` before it, and leaves less than 10 % of the gradient.

    Not blamed: a limit that is multiplied by the scale; a disabled scaler.

    What to do: call `scaler.unscale_(optimizer)` right before clipping.

    How to confirm: print what `clip_grad_norm_` returns: it is the norm times `scaler.get_scale()`.
    """

    code = "TRN035"
    name = "clip-before-unscale"
    family = "precision"
    checks = "gradients are unscaled before they are clipped"
    trial = Trial("the limit multiplied by the scale of the loss", changes.limit_times_scale)

    def seen(self, look: Look) -> str:
        return (
            _seen.of(look, Scaling, "call of a GradScaler", "calls of a GradScaler")
            + ", "
            + _seen.of(look, Clipped, "clipping of gradients", "clippings of gradients")
        )

    def blames(self, look: Look) -> Iterator[Blame]:
        if not any(s.action == "step" for s in look.of(Scaling)) or not look.of(Clipped):
            return
        scaled = [c for c in look.of(Clipped) if c.scale > 1]
        if len(look.of(Clipped)) < _STEPS:
            raise NotChecked(f"fewer than {_STEPS} clipped steps were seen")
        cut = [c for c in scaled if c.limit < _LIMIT * c.scale and _left(c) < _CUT]
        if len(cut) < max(_STEPS, 0.8 * len(look.of(Clipped))):
            return
        scale = median(c.scale for c in cut)
        yield self.blame(
            cut[0].at,
            f"in {len(cut)} of {count(len(look.of(Clipped)), 'step')} gradients were clipped to {cut[0].limit:.3g} "
            f"while they were {scale:.3g} times too large: {cut[0].limit / scale:.2g} of the true norm is left",
            confirm="call scaler.unscale_(optimizer) before clipping, and compare the norm that clipping returns",
            scale=scale,
            limit=cut[0].limit,
            steps=len(cut),
        )


def _left(clip: Clipped) -> float:
    if clip.by == "norm":
        return clip.limit / clip.norm if clip.norm else 1.0
    return 0.0 if clip.norm > 0.5 * clip.limit else 1.0
