from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import stable_before, watched
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_FORWARD = (
    "look for sqrt, norm, pow, log or division at or near zero in the loss or a custom layer, and add an eps inside"
)
_BACKWARD = (
    "look for a function whose derivative is infinite although its value is finite: "
    "sqrt, norm or pow at 0, also inside torch.where()"
)
_RAMP = "loss or gradient norm were not stable in the ten rows before: the run may have been diverging"


@diagnosis
class Numerics:
    """An operation of the model, the loss or its derivative produced NaN or infinity, and nothing in the log explains
    it.

    This diagnosis remains if a metric became non-finite and neither the learning rate, the gradients nor the loss scale
    changed before it. A replay of the step can show what the log does not.
    """

    name = "numerics"
    priority = 55

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = named(findings, *NONFINITE)
        if not bad:
            return None
        root = next((f for f in faults(view, findings) if f.name in NONFINITE), bad[0])
        gradients = [f for f in bad if f.name == "nonfinite-gradient"]
        backward = any(f is root or f.step == root.step for f in gradients)
        masked = any(f.name == "masked-nonfinite" for f in bad)
        if masked:
            where = "A logger replaced the non-finite loss by a finite number"
        elif backward:
            where = "The loss of that step is still finite: the fault is in the backward pass"
        else:
            where = "The log does not show whether data, forward pass or weights are at fault"
        ramp = bool(watched(view)) and not stable_before(view, root.step)
        return (
            Story(view, root, consequences(findings, root))
            .because(*[f.message for f in bad if f is not root][:3])
            .against(_RAMP if ramp else None)
            .disproved_by(
                "a replay of the step stays finite (then the fault is not deterministic, as of hardware or a race, "
                "or the batch is a different one)"
            )
            .advise(
                _BACKWARD if backward else _FORWARD,
                "set logging_nan_inf_filter=False, so that the log shows non-finite losses" if masked else None,
                lower_rate(view, rate_at(view, root.step)) if ramp else None,
            )
            .replay()
            .diagnosis("numerics", f"{root.message}. {where}.")
        )
