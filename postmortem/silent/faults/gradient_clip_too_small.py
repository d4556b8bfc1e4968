from __future__ import annotations

import ast
from math import isclose
from statistics import median
from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, NotChecked, _seen, fault
from postmortem.silent.faults._updates import losses, ratio, rising, updates
from postmortem.silent.faults._words import count
from postmortem.silent.source import source
from postmortem.silent.trials import Trial, without_clipping
from postmortem.silent.weight_facts import Clipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.facts import Place
    from postmortem.silent.look import Look

_STEPS = 10
_CUT = 0.05
_SMALL = 5e-5
"""Updates of this share of the weights move them by 5 % in 1000 steps, if all go the same way."""
_LEARNT = 0.7


@fault
class GradientClipTooSmall(BaseFault):
    """Gradients are clipped to a norm (or value) so small that the model does not learn.

    How it is found: at nearly every step, clipping leaves less than 5 % of the gradient norm (or all elements are at
    the limit of `clip_grad_value_`), the updates are below 0.005 % of the weights, and the loss hardly falls.

    Not blamed: clipping of a few large gradients; small limits with optimizers that do not depend on the size of the
    gradient (Adam), as their updates keep their size.

    What to do: set the limit near the norms that `clip_grad_norm_` returns.

    How to confirm: print what `clip_grad_norm_` returns next to its limit.
    """

    code = "TRN032"
    name = "gradient-clip-too-small"
    family = "optimizer-config"
    because_of = ("clip-before-unscale",)
    checks = "clipping leaves gradients that still change the weights"
    trial = Trial("no clipping", without_clipping)

    def seen(self, look: Look) -> str:
        return _seen.of(look, Clipped, "clipping of gradients", "clippings of gradients")

    def blames(self, look: Look) -> Iterator[Blame]:
        clips = [c for c in look.of(Clipped) if c.scale == 1]
        if not look.of(Clipped):
            return
        if len(clips) < _STEPS or any(rising(look, o) for o in look.stepped):
            raise NotChecked(f"fewer than {_STEPS} clipped steps at the full learning rate were seen")
        cut = [c for c in clips if (c.limit < _CUT * c.norm if c.by == "norm" else c.norm > 0.9 * c.limit)]
        sizes = [ratio(u) for o in look.stepped for u in updates(look, o)]
        went = losses(look, look.busiest)
        if len(cut) < 0.9 * len(clips) or not sizes or median(sizes) > _SMALL:
            return
        if went is not None and went[1] < _LEARNT * went[0]:
            return
        norms = (
            f"gradients of norm {median(c.norm for c in cut):.3g} (median) " if cut[0].by == "norm" else "gradients "
        )
        yield self.blame(
            set_at(cut[0].at, cut[0].limit),
            f"{norms}were clipped to {cut[0].limit:.3g} in {len(cut)} of {count(len(clips), 'step')}; the updates are "
            f"{median(sizes):.2g} of the weights (median)",
            confirm="print what clip_grad_norm_ returns, and compare a run without clipping",
            limit=cut[0].limit,
            clipped=len(cut),
            steps=len(clips),
            update=median(sizes),
        )


def set_at(at: Place | None, limit: float) -> Place | None:
    """Where a library that clips was given the limit; else the line that was running."""
    if at is None:
        return None
    read = source(at.file)
    statement = read.statement_at(at.line)
    if read.tree is None or statement is None or _clips(ast.unparse(statement)):
        return at
    for node in ast.walk(read.tree):
        if not isinstance(node, ast.keyword | ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        names = [node.arg or ""] if isinstance(node, ast.keyword) else [ast.unparse(target) for target in node.targets]
        value = node.value.value
        if isinstance(value, int | float) and isclose(value, limit, rel_tol=1e-5) and any(map(_clips, names)):
            return at._replace(line=node.value.lineno)
    return at


def _clips(text: str) -> bool:
    return any(word in text for word in ("clip", "grad_norm", "max_norm"))
