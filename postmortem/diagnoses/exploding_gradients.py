from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import stable_before, watched
from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, faults, sentence

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


_ROWS = 3
_LEVEL = 25
_FAR = 100.0
"""Rows before a non-finite value that belong to its onset; rows before them that show the level; a blow-up over it."""


@diagnosis
class ExplodingGradients:
    """The gradient norm grew by orders of magnitude, and the loss followed, at a learning rate that did not rise.

    Also reported for a non-finite value right after a gradient norm or loss a hundred times its usual level.
    """

    name = "exploding-gradients"
    priority = 45

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in faults(view, findings) if f.name in (*BLOW_UP, *NONFINITE)]
        grown = [f for f in found if f.name == "gradient-explosion"]
        root = next(iter(found), None)
        if root is None:
            return None
        summary = f"The gradients exploded: {grown[0].message}." if grown else None
        if root.name in NONFINITE:
            summary = _blow_up_before(view, root)
        if summary is None:
            return None
        rate = rate_at(view, root.step)
        others = consequences(findings, root)
        batch = f"the batch of step {root.step}"
        one_batch = stable_before(view, root.step) and any(
            f.name == "loss-spike" and f.step == root.step for f in found
        )
        return (
            Story(view, root, others)
            .because(
                f"loss and gradient norm were stable up to the previous step: {batch} may have triggered it"
                if one_batch
                else None,
                *(f.message for f in others[:3]),
            )
            .against(
                "no learning rate is logged"
                if rate is None
                else f"{rate.tag} was {number(rate.at, 3)} and did not rise before it"
            )
            .disproved_by("with the gradient clipped, the loss still rises (then its direction is wrong, not its size)")
            .advise(
                f"check the samples of step {root.step}: extreme values, empty or very long samples"
                if one_batch
                else None,
                clip(view, root.step),
                lower_rate(view, rate),
                "if the weights themselves grow: weight decay or normalisation",
            )
            .replay()
            .diagnosis("exploding-gradients", summary, "likely")
        )


def _blow_up_before(view: View, root: Finding) -> str | None:
    """In words: a gradient norm or loss far above its level in the last rows before a non-finite value; else None."""
    if root.step is None:
        return None
    for series in watched(view):
        known = series.take(series.step <= root.step).finite
        before, last = known.value[:-_ROWS][-_LEVEL:], known.value[-_ROWS:]
        if len(before) < _ROWS or not len(last) or known.step[-1] < (root.evidence.get("last_finite_step") or 0):
            continue
        at, level = int(np.argmax(last)), float(np.median(before))
        if level > 0 and last[at] >= _FAR * level:
            grew = f"{series.tag} was {number(last[at])} at step {known.step[-len(last) :][at]}"
            return f"{grew}, and {number(level)} before: it exploded. {sentence(root.message)}."
    return None
