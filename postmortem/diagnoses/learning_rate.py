from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import calm_before
from postmortem.diagnoses.shared.schedule import clip, lower_rate, number, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, consequences, faults, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_BROKEN = (*BLOW_UP, *NONFINITE, "gradient-spike")


@diagnosis
class LearningRateTooHigh:
    """The learning rate went beyond what the model could take: it jumped, or it was rising when the loss broke.

    Told only where the learning rate is logged and was rising or had jumped in the tenth of the run before the onset.
    """

    name = "learning-rate-too-high"
    priority = 30

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in faults(view, findings) or named(findings, "loss-spike", "gradient-spike") if f.name in _BROKEN]
        if not found:
            return None
        root = found[0]
        rate = rate_at(view, root.step)
        sudden = root.name not in ("divergence", "gradient-explosion") and calm_before(view, root.step)
        if rate is None or not rate.rising or (sudden and rate.jump < 1.8):
            return None
        if root.severity == "warning" and rate.jump < 1.8:
            return None  # a spike that recovered while the rate rose slowly: the batch, rather
        how = f"{'jumped' if rate.jump > 1.8 else 'was rising'} from {number(rate.before)} to {number(rate.at)}"
        others = consequences(findings, root)
        onset = root.step or 0
        early = [f for f in findings if f.name == "gradient-spike" and f.step is not None and 0.9 * onset <= f.step < onset]
        return tell(
            view,
            "learning-rate-too-high",
            root,
            others,
            summary=f"The learning rate {how} when the training broke at step {root.step}: {root.message}.",
            evidence_for=[f"{rate.tag} {how} in the tenth of the run before", *(f.message for f in (*early, *others[:2]))],
            against=["the gradient norm was calm until the step itself"] if sudden else [],
            disprove=["the same step diverges with a third of the learning rate"],
            advice=[lower_rate(view, rate), *filter(None, [clip(view, root.step)]), "a longer warm-up, where it broke in the warm-up"],
        )
