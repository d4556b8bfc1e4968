from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.model import Finding
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View


@detector
class StepReset(BaseDetector):
    """The step went back: the run was restarted from an earlier point, or two runs write into one log.

    What it looks for: the steps of one writer going back and on from there.

    Why it matters: the steps between the checkpoint and the restart exist twice; averages, best values and
    curves that mix both are wrong. What the other detectors see is the history that survived.

    How: exact. A single row out of order is none; the step reported is the first one after the restart.

    Typical causes: a requeued or resumed job, a counter that starts at zero after loading, two jobs with the same
    folder or run id.

    What to try: check that the checkpoint's step, optimizer and scheduler were restored; give every attempt a
    folder of its own.

    Known false positives: loggers that count each epoch from zero; where that happens again and again it is `info`.
    """

    code = "RUN001"
    name = "step-reset"
    severity = "warning"

    @staticmethod
    def _tag(view: View, tag: str) -> str:
        """The loss if one is logged: it is what people look at, and all tags of a writer go back together."""
        loss = view.main("loss")
        return tag if loss is None else loss.tag

    def detect(self, view: View) -> Iterator[Finding]:
        seen: set[tuple[int, int]] = set()
        start = (view.first_step or 0) + 10
        to_start = all(r.after <= start and r.before > 2 * start for r in view.restarts)
        counted = to_start and len({r.after for r in view.restarts}) > 1
        for restart in view.restarts:
            if (restart.before, restart.after) in seen:
                continue
            seen.add((restart.before, restart.after))
            how = f"{restart.before - restart.after + 1} steps exist twice"
            if restart.after <= (view.first_step or 0):
                how = "the counter starts again"
            if counted:
                how = "as a counter of each epoch does"
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if counted else self.severity,
                message=f"the steps go back from {restart.before} to {restart.after}: {how}",
                tag=self._tag(view, restart.tag),
                rank=restart.rank if restart.rank >= 0 else None,
                step=restart.after,
                wall_time=restart.wall_time if restart.wall_time == restart.wall_time else None,
                evidence={"before": restart.before, "after": restart.after},
            )
