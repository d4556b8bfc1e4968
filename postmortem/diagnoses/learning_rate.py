from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import stable_before, watched
from postmortem.diagnoses.shared.schedule import clip, lower_rate, rate_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, faults, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_SOON = 25
"""Rows after a jump of the learning rate within which a failure is its consequence."""
_BROKEN = (*BLOW_UP, *NONFINITE, "gradient-spike")


@diagnosis
class LearningRateTooHigh:
    """The learning rate became too high for the model: it jumped, or it was rising when the loss became unstable.

    Reported only if the learning rate is logged and was rising, or had jumped, in the tenth of the run before the
    onset: likely, or only possible if the loss was stable up to the failing step and the learning rate did not jump a
    few rows before. A jump is then the root cause of what follows. A learning rate that is itself NaN or infinite when
    the training fails is a certain cause: the diagnosis is then called nonfinite-learning-rate.
    """

    name = "learning-rate-too-high"
    also = ("nonfinite-learning-rate",)
    priority = 30

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [
            f for f in faults(view, findings) or named(findings, "loss-spike", "gradient-spike") if f.name in _BROKEN
        ]
        if not found:
            return None
        root = found[0]
        if root.name in NONFINITE and role(view, root) == "lr":
            return _nonfinite(view, findings, root)
        rate = rate_at(view, root.step)
        sudden = root.name not in ("divergence", "gradient-explosion") and stable_before(view, root.step)
        if rate is None or not rate.rising or (sudden and rate.jump < 1.8):
            return None
        if root.severity == "warning" and rate.jump < 1.8:
            return None  # a spike that recovered while the rate rose slowly is more likely caused by the batch
        jump = _jump_before(findings, root)
        rise = f"{'jumped' if rate.jump > 1.8 else 'was rising'} from {number(rate.before, 3)} to {number(rate.at, 3)}"
        when = f"when the training became unstable at step {root.step}"
        if rate.calm is None and root.name == "divergence":
            when = f"up to step {root.step}, and the log shows no rate before at which the loss fell"
        others = [root, *consequences(findings, root)] if jump is not None else consequences(findings, root)
        onset = root.step or 0
        spikes = [f for f in findings if f.name == "gradient-spike" and f.step is not None]
        early = [f for f in spikes if 0.9 * onset <= (f.step or 0) < onset]
        return (
            Story(view, jump or root, others)
            .because(
                f"{rate.tag} {rise} in the last 10 % of the steps before the onset",
                *(f.message for f in (*early, *others[:2])),
            )
            .against(f"{' and '.join(s.tag for s in watched(view))} stayed stable until that step" if sudden else None)
            .disproved_by("the same step also diverges with a third of the learning rate")
            .advise(
                lower_rate(view, rate),
                clip(view, root.step),
                "use a longer warm-up if the failure was in the warm-up" if rate.jump < 1.8 else None,
            )
            .replay(step=root.step)
            .diagnosis(
                "learning-rate-too-high",
                f"The learning rate {rise} {when}: {root.message}.",
                "possible" if sudden and jump is None else "likely",
            )
        )


def _jump_before(findings: tuple[Finding, ...], root: Finding) -> Finding | None:
    """The jump of the learning rate that `root`, a few rows later at most, is a consequence of."""
    onset = root.step
    for jump in reversed(named(findings, "lr-jump")):
        if onset is None or jump.step is None or jump.step > onset:
            continue
        row = max(1, jump.step - int(jump.evidence.get("step_before", jump.step)))
        return jump if onset - jump.step <= _SOON * row else None
    return None


def _nonfinite(view: View, findings: tuple[Finding, ...], root: Finding) -> Diagnosis:
    """The rate itself is NaN or infinite: an update with it makes all weights non-finite."""
    return (
        Story(view, root, consequences(findings, root))
        .because(*(f.message for f in consequences(findings, root)[:3]))
        .disproved_by("the logged rate is not the one that the optimizer uses")
        .advise("check the schedule: a division by a number of steps that is zero, a power of a negative number")
        .diagnosis("nonfinite-learning-rate", f"The learning rate itself is not finite: {root.message}.", "certain")
    )
