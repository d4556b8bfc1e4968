from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import Story, consequences, faults, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class LossScaleCollapse:
    """The loss scaler could not find a working scale: it halved the scale repeatedly, as it does while gradients
    overflow.

    The scaler hides the cause of the overflow, as it skips the updates. Investigate the first skipped step of the fall.
    """

    name = "loss-scale-collapse"
    priority = 15

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "loss-scale-collapse")
        first = next(iter(faults(view, findings)), None)
        if not found or first is None:
            return None
        root = found[0]
        related = first.name in ("loss-scale-collapse", "inf-onset", "nan-onset", "nonfinite-gradient")
        if not related and first.step is not None and first.step < (root.step or 0):
            return None  # the run failed before
        onsets = [f for f in named(findings, "nan-onset", "inf-onset") if role(view, f) == "loss"]
        broken = [f for f in onsets if (f.step or 0) <= (root.step or 0) + 1 and _for_good(view, f)]
        forward = [f for f in onsets if f.step == root.step and f not in broken and not f.evidence.get("between")]
        fall = f"{number(root.evidence['before'], 3)} to {number(root.evidence['end'], 3)}"
        return (
            Story(view, root, consequences(findings, root))
            .because(
                root.message,
                *(f.message for f in named(findings, "inf-onset", "nan-onset", "nonfinite-gradient")[:2]),
            )
            .against(
                *(
                    f"from step {f.step} on, {f.tag} itself is non-finite in every batch: "
                    "weights or data are faulty, and no loss scale helps"
                    for f in broken[:1]
                )
            )
            .disproved_by(
                "a replay of the step in fp32 has non-finite gradients as well (then precision is not the cause)"
            )
            .advise(
                "use bf16 instead of fp16, or fp32 for the loss and the layer that overflows",
                lower_rate(view, rate_at(view, root.step)),
            )
            .replay()
            .diagnosis(
                "loss-scale-collapse",
                f"From step {root.step} on the loss scale falls from {fall}: the scaler skips steps with overflow."
                + "".join(
                    f" {f.tag} itself is not finite in that step: the overflow is likely in the forward pass, which no "
                    "loss scale changes, and the fall of the scale follows from it."
                    for f in forward[:1]
                ),
                "likely",
            )
        )


def _for_good(view: View, onset: Finding) -> bool:
    """True if no point after the onset is finite. An overflow in one forward pass does not affect the next."""
    own = next((s for s in view.series if s.tag == onset.tag and onset.rank in (None, s.rank)), None)
    after = own.value[own.step > (onset.step or 0)] if own is not None else np.empty(0)
    return bool(len(after)) and not np.isfinite(after).any()
