from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_step
from postmortem.diagnoses.shared.schedule import number, value_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, consequences, has_errors, named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class CorruptResume:
    """A resume did not bring back all state: weights, optimizer or scheduler started anew, or another learning rate was set.

    Seen as a learning rate that jumps back to its peak, or anywhere at the step where the log starts again, or as a
    loss that leaps there. Harm that follows (a spike, a divergence, NaN) is a consequence.
    """

    name = "corrupt-resume"
    priority = 10

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        jumps, resets = named(findings, "lr-jump"), named(findings, "step-reset")
        hurt = named(findings, *BLOW_UP, *NONFINITE)
        at_reset = [
            (r, h)
            for r in resets
            for h in named(findings, *BLOW_UP)
            if r.step is not None and h.step is not None and 0 <= h.step - r.step <= _near(view)
        ]
        rate = view.main("lr")
        highest = 0.0 if rate is None else float(rate.finite.value.max(initial=0.0))
        # a jump that is told from the steps done twice has no peak: it is another rate, not the beginning of the schedule
        back = [j for j in jumps if highest <= 1.2 * j.evidence.get("peak_before", 0.0)]
        starts = [f.step for f in findings if f.name == "step-reset" and f.step is not None]  # a clean resume is one too
        at_start = [j for j in jumps if any(0 <= (j.step or 0) - start <= _near(view) for start in starts)]
        if back or at_start:
            root = (back or at_start)[0]
            went_on = "went on without all of its state: the scheduler was not restored" if back else "was resumed with another learning rate"
            harmed = [h for h in hurt if h.step is not None and root.step is not None and h.step >= root.step]
            if has_errors(findings) and not any(h.severity == "error" for h in harmed):
                return None  # something else ended the run
        elif at_reset:
            root = at_reset[0][0]
            went_on = "went on without all of its state: weights or optimizer state were not restored"
            went_on += "" if rate is not None else ", or the learning rate, which is not logged, is another"
        else:
            return None
        grave = [h for h in hurt if h.severity == "error" and h.step is not None and root.step is not None and h.step >= root.step]
        for_ = [root.message]
        good = last_good_step(view, root.step)
        loss = view.main("loss")
        before, after = value_at(loss, good), value_at(loss, root.step)
        if before is not None and after is not None and loss is not None:
            for_.append(f"{loss.tag} was {number(before)} at step {good} and is {number(after)} at step {root.step}")
        for_ += [r.message for r in resets if r is not root]
        against = [] if resets or starts else ["the log shows no restart: steps do not go back; a schedule with one restart looks the same"]
        advice = ["save and load model, optimizer, scheduler and scaler together; compare the first lr and loss with the last ones"]
        if root.name == "lr-jump":
            values = root.evidence
            jump = f"{number(values['before'])}, not {number(values['after'])}"
            advice.insert(0, f"{root.tag}: {'restore the scheduler, so that it goes' if back else 'go'} on at {jump}")
        return tell(
            view,
            "corrupt-resume",
            root,
            consequences(findings, root),
            summary=f"At step {root.step} the run {went_on}: {root.message}.",
            evidence_for=for_,
            against=against,
            disprove=["the jump is in the configured schedule" if back or not at_start else "the learning rate was raised on purpose"],
            advice=advice,
            replay=bool(grave),
            rerun=grave[0].step if grave else None,
        )


def _near(view: View) -> int:
    """Steps within which harm belongs to a restart: a twentieth of the run."""
    return max(1, ((view.last_step or 0) - (view.first_step or 0)) // 20)
