from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, consequences, faults

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_POINTS = 3
"""Finite gradient norms after the onset that are needed: non-finite weights show in the very next one."""


@diagnosis
class StickyAverage:
    """The logged loss stays non-finite (or exactly 0) while the gradient norm stays finite: the logged average keeps a
    NaN.

    A running sum with one NaN never becomes finite again. The transformers Trainer logs such a sum: with
    `logging_nan_inf_filter=False`, one non-finite micro-batch makes all later losses NaN. A finite, positive gradient
    norm at the later steps shows that their losses were finite. Only the saved weights show whether the update with the
    NaN was skipped: inspect them before you rerun anything.
    """

    name = "sticky-average"
    priority = 12

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found, grad = faults(view, findings), view.main("grad_norm")
        if not found or found[0].name not in ("nan-onset", "masked-nonfinite") or grad is None:
            return None
        root = found[0]
        loss = next((s for s in view.of("loss") if s.tag == root.tag and root.rank in (None, s.rank)), None)
        if loss is None or root.step is None or _moves(loss.value[loss.step > root.step]):
            return None
        after = grad.value[grad.step > root.step]
        if len(after) < _POINTS or not (np.isfinite(after).all() and (after > 0).all()):
            return None
        later = [c for c in view.checkpoints if c.step is not None and c.step >= root.step and c.finite is not None]
        if any(c.finite is False for c in later):
            return None
        saved = f"the weights saved at step {later[-1].step} are finite" if later else None
        span = f"between {number(after.min(), 3)} and {number(after.max(), 3)}"
        look = f"`postmortem checkpoints {shlex.quote(str(view.run.path))}`"
        return (
            Story(view, root, consequences(findings, root))
            .because(f"{grad.tag} is finite at all later steps, {span}", saved)
            .against(None if saved else "no saved weights of these steps were inspected")
            .disproved_by("weights that were saved after it hold non-finite values")
            .advise(
                None if saved else f"inspect the saved weights first; if finite, only the average is lost: {look}",
                "log the loss of each step; transformers: logging_nan_inf_filter=True leaves NaN out of the average",
                f"find the micro-batch of step {root.step} with a non-finite loss (no labels, an empty sample)",
            )
            .diagnosis(
                "sticky-average",
                f"{root.message}, but {grad.tag} stays finite up to step {grad.step[-1]}: the logged average "
                "(an accumulator) likely keeps one non-finite value, and the weights are likely finite.",
                "likely",
            )
        )


def _moves(later: NDArray[np.float64]) -> bool:
    """Whether a logged loss shows a value again that is neither non-finite nor 0."""
    return bool((np.isfinite(later) & (later != 0)).any())
