from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_step
from postmortem.diagnoses.shared.schedule import value_at
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.view import View

_SAVE_ALL = "save and load model, optimizer, scheduler and scaler together; compare lr and loss across the restart"


@diagnosis
class CorruptResume:
    """A resume that likely did not restore all state: weights, optimizer or scheduler were reset, or another learning
    rate was set.

    It shows as a learning rate that jumps back to its peak or differs at the step where the log restarts, or as a loss
    that jumps at that step or where the log reports a resume. Later failures (a spike, a divergence, NaN) are
    consequences. A learning rate that starts over without a restart in the log is only a possible cause, as a schedule
    with a warm restart looks the same.
    """

    name = "corrupt-resume"
    priority = 10

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        jumps = named(findings, "lr-jump")
        if back := [j for j in jumps if _back_to_peak(view, j)]:
            return _scheduler_lost(view, findings, back[0])
        if at_restart := [j for j in jumps if _at_restart(view, findings, j)]:
            return _another_rate(view, findings, at_restart[0])
        if harmful := [r for r in named(findings, "step-reset") if _blew_up_at(view, findings, r)]:
            return _weights_lost(view, findings, harmful[0])
        blown_up = [f for f in named(findings, *BLOW_UP) if f.because_of is None and _announced_resume(view, f)]
        return _state_lost(view, findings, blown_up[0]) if blown_up else None


def _scheduler_lost(view: View, findings: tuple[Finding, ...], jump: Finding) -> Diagnosis | None:
    if _ended_otherwise(findings, jump):
        return None
    before, after = (number(jump.evidence[side], 3) for side in ("before", "after"))
    restarted = any(f.name == "step-reset" for f in findings)
    unseen = "the log shows no restart (steps do not go back); a schedule with a warm restart looks the same"
    return (
        _restart_story(view, findings, jump)
        .against(None if restarted else unseen)
        .disproved_by("the jump is in the configured schedule")
        .advise(f"restore the scheduler state, so that {jump.tag} continues at {before}, not {after}", _SAVE_ALL)
        .diagnosis(
            CorruptResume.name,
            f"The schedule starts over at step {jump.step}, as if the scheduler was not restored: {jump.message}.",
            "likely" if restarted else "possible",
        )
    )


def _another_rate(view: View, findings: tuple[Finding, ...], jump: Finding) -> Diagnosis | None:
    if _ended_otherwise(findings, jump):
        return None
    before, after = (number(jump.evidence[side], 3) for side in ("before", "after"))
    return (
        _restart_story(view, findings, jump)
        .disproved_by("the learning rate was changed on purpose")
        .advise(f"{jump.tag}: continue at {before}, not {after}", _SAVE_ALL)
        .diagnosis(
            CorruptResume.name,
            f"At step {jump.step} the run was resumed with another learning rate: {jump.message}.",
            "likely",
        )
    )


def _weights_lost(view: View, findings: tuple[Finding, ...], reset: Finding) -> Diagnosis:
    lost = "Weights or optimizer state may not have been restored"
    if view.main("lr") is None:
        lost += ", or the learning rate (not logged) differs"
    return (
        _restart_story(view, findings, reset)
        .disproved_by("the jump is in the configured schedule")
        .advise(_SAVE_ALL)
        .diagnosis(
            CorruptResume.name,
            f"The training became unstable where it was resumed, at step {reset.step}: {reset.message}. {lost}.",
            "likely",
        )
    )


def _state_lost(view: View, findings: tuple[Finding, ...], jump: Finding) -> Diagnosis:
    """The steps do not go back: the log itself reports the resume."""
    announced = _announced_resume(view, jump)
    assert announced is not None
    where = f", line {announced.line}" if announced.line else ""
    return (
        _restart_story(view, findings, jump)
        .because(f'the log says "{announced.message[:120]}"{where}')
        .disproved_by("loss and learning rate of an uninterrupted run do the same at this step")
        .advise("check which checkpoint was loaded and that it is the newest", _SAVE_ALL)
        .diagnosis(
            CorruptResume.name,
            f"The training got worse where it was resumed: {jump.message}. The checkpoint may be an older one, or "
            "part of the state was not restored.",
            "likely",
        )
    )


def _announced_resume(view: View, jump: Finding) -> Event | None:
    """The message of a resume that no logged point of the jump's series separates from the jump."""
    series = next((s for s in view.series if s.tag == jump.tag), None)
    if series is None or jump.step is None:
        return None
    before = series.step[series.step < jump.step]
    last = int(before[-1]) if len(before) else None
    said = [e for e in view.events if e.kind == "resumed" and e.step is not None]
    return next((e for e in said if last is not None and last <= (e.step or 0) <= jump.step), None)


def _restart_story(view: View, findings: tuple[Finding, ...], root: Finding) -> Story:
    """The parts that all three share: the loss before and after, the restarts, and the failing step to replay."""
    story = Story(view, root, consequences(findings, root)).because(root.message, _loss_across(view, root.step))
    story.because(*(r.message for r in named(findings, "step-reset") if r is not root))
    if grave := _errors_since(findings, root):
        story.replay(step=grave[0].step)
    return story


def _loss_across(view: View, step: int | None) -> str | None:
    """The loss on both sides of a restart: at the same step, where both attempts logged it."""
    loss = view.main("loss")
    after = value_at(loss, step)
    if loss is None or after is None:
        return None
    for old in (s for s in view.overwritten if s.tag == loss.tag):
        at = np.flatnonzero((old.step == step) & np.isfinite(old.value))
        if len(at):
            was, now = number(float(old.value[at[-1]]), 3), number(after, 3)
            return f"{loss.tag} was {was} at step {step} before the restart and is {now} at that step after it"
    good = last_good_step(view, step)
    before = value_at(loss, good)
    if before is None:
        return None
    return f"{loss.tag} was {number(before, 3)} at step {good} and is {number(after, 3)} at step {step}"


def _back_to_peak(view: View, jump: Finding) -> bool:
    """True if the learning rate jumped to its peak: the schedule started again.

    A jump that shows in overwritten steps has no peak in its evidence: there, another learning rate was set.
    """
    rate = view.main("lr")
    highest = 0.0 if rate is None else float(rate.finite.value.max(initial=0.0))
    return highest <= 1.2 * float(jump.evidence.get("peak_before", 0.0))


def _at_restart(view: View, findings: tuple[Finding, ...], jump: Finding) -> bool:
    """True if the learning rate jumped at a restart. A harmless restart, of severity info, counts as well."""
    restarts = [f.step for f in findings if f.name == "step-reset" and f.step is not None]
    return any(0 <= (jump.step or 0) - step <= _near(view) for step in restarts)


def _blew_up_at(view: View, findings: tuple[Finding, ...], reset: Finding) -> bool:
    """True if the loss or the gradient blew up at a restart."""
    harm = [f.step for f in named(findings, *BLOW_UP) if f.step is not None]
    return reset.step is not None and any(0 <= step - reset.step <= _near(view) for step in harm)


def _ended_otherwise(findings: tuple[Finding, ...], jump: Finding) -> bool:
    """True if there are errors, but none that the jump can have caused: something else ended the run."""
    return has_errors(findings) and not _errors_since(findings, jump)


def _errors_since(findings: tuple[Finding, ...], root: Finding) -> list[Finding]:
    """Errors in the numbers at or after the step of `root`."""
    grave = [f for f in named(findings, *BLOW_UP, *NONFINITE) if f.severity == "error" and f.step is not None]
    return [f for f in grave if root.step is not None and (f.step or 0) >= root.step]


def _near(view: View) -> int:
    """Number of steps after a restart within which a failure is attributed to it: a twentieth of the run."""
    return max(1, ((view.last_step or 0) - (view.first_step or 0)) // 20)
