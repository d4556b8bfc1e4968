from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import calm_before, watched
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import NONFINITE, consequences, faults, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Numerics:
    """An operation of the model, the loss or its derivative gave NaN or infinity, and nothing in the log explains it.

    The story that remains where a quantity turned non-finite and neither the learning rate, the gradients nor the loss scale led up to it. What the
    log cannot tell, the replay of the step can.
    """

    name = "numerics"
    priority = 55

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = named(findings, *NONFINITE)
        if not bad:
            return None
        root = next((f for f in faults(view, findings) if f.name in NONFINITE), bad[0])
        backward = root.name == "nonfinite-gradient" or any(f.name == "nonfinite-gradient" and f.step == root.step for f in bad)
        masked = any(f.name == "masked-nonfinite" for f in bad)
        others = consequences(findings, root)
        if masked:
            where = "A logger replaced the loss, so that it looks like a number"
        elif backward:
            where = "The loss of that step is still finite: the fault is in the backward pass"
        else:
            where = "The log does not tell whether data, forward pass or weights are at fault"
        advice = ["sqrt, norm, pow, log, division at or near zero in the loss or a custom layer: add an eps inside"]
        if backward:
            advice = ["look for a function whose derivative is infinite where its value is not: sqrt, norm or pow at 0, where() around them"]
        if masked:
            advice.append("logging_nan_inf_filter=False, so that the log shows the truth")
        ramp = bool(watched(view)) and not calm_before(view, root.step)
        if ramp:
            advice.append(lower_rate(view, rate_at(view, root.step)))
        return tell(
            view,
            "numerics",
            root,
            others,
            summary=f"{root.message}. {where}.",
            evidence_for=[f.message for f in bad if f is not root][:3],
            against=["loss or gradient norm were not calm in the ten rows before: it may have been diverging"] if ramp else [],
            disprove=["the replay of the step stays finite: then it is not deterministic (hardware, a race), or the batch is another one"],
            advice=advice,
        )
