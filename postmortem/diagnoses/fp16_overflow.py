from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.growth import growths
from postmortem.diagnoses.shared.loss_scale import forward_overflow
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_HALF = ("fp16", "float16", "16-mixed", "16", "half", "torch.float16")
_BEFORE_THE_SCALE = (
    " The loss scale first falls in that step: the overflow is likely in the forward pass, which no loss scale "
    "changes, and the fall of the scale follows from it."
)


@diagnosis
class Fp16Overflow:
    """A value that exceeded the range of fp16 (65504): infinities in a run that computes in fp16.

    Reported if the run is known to use fp16 (a loss scale, its configuration, messages of a scaler) and the first
    non-finite value is infinite or follows an infinite one (likely), or a gradient is NaN (possible). Steps that the
    scaler skipped are not counted. Not reported if the loss had grown by orders of magnitude over several rows before:
    the training diverged, in any precision.
    """

    name = "fp16-overflow"
    priority = 35

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        forward = forward_overflow(view, findings)
        root = forward or next(iter(faults(view, findings)), None)
        sign = _half_precision(view)
        if root is None or root.name not in NONFINITE or sign is None:
            return None
        falls = named(findings, "loss-scale-collapse")[:1]
        onsets = [f for f in named(findings, "inf-onset") if f.step is not None]
        if any(g.series.role != "grad_norm" and not g.sudden for g in growths(view, root)):
            return None  # the loss grew by orders of magnitude first: in fp32 it would have become infinite later
        infinite = [f for f in onsets if root.step is not None and (f.step or 0) <= root.step + 1]
        gradient = root.name == "nonfinite-gradient" or role(view, root) == "grad_norm"
        if not infinite and not gradient and forward is None:
            return None
        return (
            Story(view, root, consequences(findings, root))
            .because(sign, *(f.message for f in infinite[:2]), *(f.message for f in falls if forward is not None))
            .disproved_by("a replay of the step in fp32 is non-finite as well")
            .advise(
                "use bf16 instead of fp16",
                "use fp32 for the operation that overflows (logits, norms, the loss)",
                "use a dynamic loss scale (torch.amp.GradScaler) if it is static" if forward is None else None,
            )
            .replay()
            .diagnosis(
                "fp16-overflow",
                f"The run computes in fp16, where values above 65504 become infinite: {root.message}."
                + (_BEFORE_THE_SCALE if forward is not None else ""),
                "likely" if infinite or forward is not None else "possible",
            )
        )


def _half_precision(view: View) -> str | None:
    """The evidence that the run computes in fp16; None if there is none."""
    for key, value in view.run.config.items():
        value = value.get("value") if isinstance(value, dict) else value
        name = str(key).lower()
        if ("fp16" in name and value is True) or (isinstance(value, str) and value.lower() in _HALF):
            return f"the configuration has {key} = {value}"
    scale = view.main("loss_scale")
    if scale is not None and len(scale.finite) and scale.finite.value.max() > 1:
        return f"{scale.tag} is logged: a loss scaler is active"
    return next((f"the log reports: {e.message.splitlines()[0]}" for e in view.events if "overflow" in e.kind), None)
