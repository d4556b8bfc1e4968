from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.loss_scale import broken_for_good, forward_overflow
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import Story, consequences, faults, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class LossScaleCollapse:
    """The loss scaler could not find a working scale: it halved the scale repeatedly, as it does while gradients
    overflow.

    The scaler hides the cause of the overflow, as it skips the updates. Investigate the first skipped step of the fall.
    Not reported if the loss itself is not finite in that step: the forward pass overflows (`fp16-overflow`).
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
        if forward_overflow(view, findings) is not None:
            return None  # the overflow comes before the scale
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
                    for f in broken_for_good(view, findings, root)[:1]
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
                f"From step {root.step} on the loss scale falls from {fall}: the scaler skips steps with overflow.",
                "likely",
            )
        )
