from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.model import Finding
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import overwritten_onset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View


def _failed_before(view: View, step: int) -> str | None:
    """The exception at the step before a restart, in its first words, if the log has one."""
    failed = (e for e in view.events if e.step == step and e.fields.get("exception"))
    return next((e.message.splitlines()[0][:200] for e in failed if e.message), None)


def _starts_again(view: View) -> str | None:
    """How to explain steps that go back to their beginning several times, which no accident does; else None.

    Nothing is explained where an attempt failed or became non-finite: then it was restarted because of that.
    """
    restarts, first = view.restarts, view.first_step or 0
    start = first + 10
    if len({r.after for r in restarts}) > 1 and all(r.after <= start and r.before > 2 * start for r in restarts):
        return "like a counter that restarts in each epoch"
    planned = len(restarts) > 1 and all(r.after <= first < r.before for r in restarts)
    if planned and not any(_failed_before(view, r.before) or overwritten_onset(view, r) for r in restarts):
        return "the counter starts over several times, as for parts of one training: folds, trials or phases"
    return None


@detector
class StepReset(BaseDetector):
    """The step count went back: the run was restarted from an earlier step, or two runs write to one log.

    What it looks for: steps of one writer that go back and continue from there.

    Why it matters: the steps between the checkpoint and the restart were logged twice. Averages, best values and curves
    that mix both are wrong. Other detectors see only the points that the restart did not overwrite.

    How: exact comparison. A single row out of order is not a restart. The reported step is the first one after the
    restart. The message says if the points that were logged again had become non-finite, or if the program had failed.

    Typical causes: a requeued or resumed job, a counter that starts at zero after a checkpoint is loaded, two jobs with
    the same folder or run id.

    What to try: check that the step, optimizer and scheduler of the checkpoint were restored; use a separate folder for
    every attempt.

    Severity: info if the steps go back to their beginning several times and no attempt failed: the folds of a
    cross-validation, the trials of a search, the phases of a training, or a counter that starts again in each epoch.

    Known false positives: two phases or folds in one log, each counted from zero.
    """

    code = "RUN001"
    name = "step-reset"
    severity = "warning"

    @staticmethod
    def _tag(view: View, tag: str) -> str:
        """The loss if one is logged: it is the most familiar tag, and all tags of a writer go back together."""
        loss = view.main("loss")
        return tag if loss is None else loss.tag

    def detect(self, view: View) -> Iterator[Finding]:
        seen: set[tuple[int, int]] = set()
        again = _starts_again(view)
        for restart in view.restarts:
            if (restart.before, restart.after) in seen:
                continue
            seen.add((restart.before, restart.after))
            how = f"{restart.before - restart.after + 1} steps were logged twice"
            if restart.after <= (view.first_step or 0):
                how = "the counter starts over"
            if onset := overwritten_onset(view, restart):
                how += f"; before, {onset[0]} was non-finite (NaN or Inf) from step {onset[1]} on"
            if failed := _failed_before(view, restart.before):
                how += f", after the program failed: {failed}"
            if again:
                how = again
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if again else self.severity,
                message=f"the steps go back from {restart.before} to {restart.after} ({how})",
                tag=self._tag(view, restart.tag),
                rank=restart.rank if restart.rank >= 0 else None,
                step=restart.after,
                wall_time=restart.wall_time if restart.wall_time == restart.wall_time else None,
                evidence={"before": restart.before, "after": restart.after},
            )
