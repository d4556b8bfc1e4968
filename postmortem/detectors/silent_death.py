from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.core.model import Finding
from postmortem.core.training_length import training_length
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.training_length import TrainingLength
    from postmortem.core.view import View

_SEVERAL = 3
"""Trainings before the last one by which is known how they end, such as by early stopping that prints nothing."""
_SHORTEST = 0.6
"""Share of the shortest training before it which the last one of a log has, if it ended like them."""


@detector
class SilentDeath(BaseDetector):
    """The log stops in the middle of the training, without a reason.

    What it looks for: a run that did fewer steps (or epochs) than planned, with no error, no job scheduler message and
    no regular end.

    Why it matters: a process killed from outside (host memory, node failure, scancel, power) leaves no traceback.

    How: the number of steps or epochs announced by the log, the progress bar or the configuration is compared with the
    last one logged; W&B files that end without an exit record. A run that did less than `share` of the announced length
    died silently. A counter that restarts in every epoch counts as a fraction of an epoch. A counter that is printed
    every 50 steps has reached its end when fewer than 50 steps are left. The trainer_state.json of a checkpoint does
    not count as a log that stops.

    Typical causes: the kernel's out-of-memory killer, a preempted or failed node, a lost connection to the terminal,
    a full disk.

    What to try: check dmesg, the job's accounting (sacct -j JOB --format=State,MaxRSS,ExitCode) and the .err file of
    the job; run with nohup or under the job scheduler.

    Not reported where the log holds several trainings, each from its start, and most of them ended as early, unless
    the last one is far shorter than all of them.

    Known false positives: early stopping that prints nothing; a run that is still active or was not fully synced; an
    excerpt of a log.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Fraction of the announced steps below which the end is missing."""

        share: float = 0.95

    code = "RUN002"
    name = "silent-death"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        explained = view.run.ended not in ("unknown", "cut") or any(e.severity == "error" for e in view.events)
        if view.run.readings and all(r.facts.get("snapshot") for r in view.run.readings):
            return  # a checkpoint shows how far the training was when it was saved, not that it stopped there
        if explained or view.last_step is None:
            return
        length = training_length(view)
        if length is None or length.done >= self.options.share * length.planned:
            yield from self._without_exit_record(view)
            return
        if self._as_the_others(view, length):
            return
        yield Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            message=f"the log stops {length} without a reason",
            step=view.last_step,
            evidence=length._asdict(),
        )

    def _as_the_others(self, view: View, length: TrainingLength) -> bool:
        """Whether most of several trainings that the log holds from their start ended before the announced length."""
        if length.unit != "step" and view.run.step_axis != "epoch":
            return False
        first = (view.first_step or 0) + 1
        ends = [r.before for r in view.restarts if r.after <= first]
        early = sum(end < self.options.share * length.planned for end in ends)
        usual = len(ends) >= _SEVERAL and early > 0.5 * len(ends)
        return usual and length.done >= _SHORTEST * min(ends)

    def _without_exit_record(self, view: View) -> Iterator[Finding]:
        """W&B writes an exit record at every end that Python sees, errors and Ctrl-C included."""
        for reading in view.run.readings:
            if reading.source == "wandb" and "exit_code" in reading.facts and reading.facts["exit_code"] is None:
                yield Finding(
                    code=self.code,
                    name=self.name,
                    severity=self.severity,
                    message=f"the W&B file stops at step {view.last_step} without an exit record: "
                    "the process may have been killed or still run, or the file is incomplete",
                    step=view.last_step,
                    evidence={"file": reading.path, "exit_code": None},
                )
