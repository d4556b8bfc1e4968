from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.collectives import waiting
from postmortem.core.model import Finding
from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.core.training_length import training_length
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Severity
    from postmortem.core.view import View

_ACTIVE = ("loss", "val_loss", "accuracy", "val_accuracy", "reward", "lr", "grad_norm")
"""Roles that only a training or an evaluation that is at work logs; the use of the machine is logged by a hung one."""


@detector
class Hang(BaseDetector):
    """The run hung: a collective timed out, or nothing was logged for a long time before the end.

    What it looks for: a log message about it (a watchdog, a collective timeout), or a pause between the last logged
    step and the end of the log that is far longer than any pause between two rows.

    Why it matters: the machines were occupied without computing anything. The rank that is missing from the collective
    is the one to investigate.

    How: the events, or else the wall times: nothing logged for more than `silence` seconds and for more than `factor`
    times the longest pause before. An nvidia-smi log in the folder counts if the GPUs that were busy are idle at its
    end while their memory is still in use: the process exists but does nothing.

    If an unfinished run was stopped from outside and its log has timestamps, a shorter pause is enough: more than
    `waited` seconds, `rows` times the usual time between two rows, and `factor` times the longest pause before.

    Severity: warning if only nvidia-smi shows it and the planned length of the training is unknown (a finished notebook
    keeps its memory as well), or if somebody stopped the run.

    Typical causes: one rank took another branch, left the loop early or crashed; a slow or dead network; a waiting data
    loader worker; a lock in a forked process.

    What to try: use the flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE), run py-spy dump on every rank, set
    NCCL_DEBUG=INFO.

    Known false positives: a long evaluation or upload after the last logged step.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Seconds without a log line, and multiple of the longest pause before; seconds, and usual times between two
        rows, without a log line before somebody stopped the run."""

        silence: float = 1800.0
        factor: float = 20.0
        waited: float = 30.0
        rows: float = 100.0

    code = "RUN004"
    name = "hang"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        hung = view.run.ended == "hung"
        first = next((e for e in view.events if e.kind in ("hang", "hung") or (hung and e.severity == "error")), None)
        waited, missing = waiting(view)
        if first is not None:
            alone = min(missing) if waited and len(missing) == 1 else None
            who = "the run hung" if alone is None else f"rank {alone} likely hung, as the others waited for it"
            yield Finding(
                code=self.code,
                name=self.name,
                severity=self.severity,
                message=who + (f": {first.message.splitlines()[0]}" if first.message else ""),
                rank=first.rank if alone is None else alone,
                step=first.step if first.step is not None else view.last_step,
                evidence={"kind": first.kind, "line": first.line, "file": first.file},
            )
        elif hung:
            yield Finding(
                code=self.code, name=self.name, severity=self.severity, message="the run hung", step=view.last_step
            )
        elif finding := self._silence(view):
            yield finding

    def _silence(self, view: View) -> Finding | None:
        if view.run.ended in ("completed", "running"):
            return None
        stopped = [r.stopped for r in view.run.readings if r.machine is None and r.stopped is not None]
        longest = max((s for s in view.series if s.timed and np.isfinite(s.wall_time).sum() > 5), key=len, default=None)
        if longest is None:
            return None
        wall = longest.wall_time[np.isfinite(longest.wall_time)]
        pause, last = float(np.diff(wall).max()), float(wall.max())
        ends = [float(np.nanmax(s.wall_time)) for s in view.of(*_ACTIVE) if np.isfinite(s.wall_time).any()]
        active = max([last, *ends])
        silence, before = max(stopped, default=last) - active, f"the longest pause before was {_span(pause)}"
        idle, path = self._idle(view, max(last, *stopped)) if stopped else (0.0, "")
        enough = max(self.options.silence, self.options.factor * pause)
        severity: Severity = self.severity
        if silence > enough:
            message = f"nothing was logged in the last {_span(silence)}; {before}"
        elif idle > enough:
            severity = "error" if _unfinished(view) else "warning"
            message = (
                f"the log stops, and in the last {_span(idle)} of {Path(path).name} the GPU is idle, while its memory "
                f"is still in use; {before}"
            )
        elif view.run.ended == "interrupted" and self._waited_in_vain(view, silence, wall):
            severity = "warning"
            message = f"nothing was logged in the {_span(silence)} until it was interrupted; {before}: it may have hung"
        else:
            return None
        if _appended(view) and not _unfinished(view):
            severity, message = "info", f"{message}; several trainings were appended to the log: a start without steps"
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity,
            message=message,
            tag=longest.tag,
            step=view.last_step,
            evidence={"silence_seconds": silence, "longest_pause_seconds": pause, "gpu_idle_seconds": idle},
        )

    def _waited_in_vain(self, view: View, silence: float, wall: NDArray[np.float64]) -> bool:
        """Whether a run that was stopped had stood still, by the times float64[n] of its rows, and was not done."""
        pauses, length = np.diff(wall), training_length(view)
        enough = max(self.options.waited, self.options.rows * median(pauses), self.options.factor * float(pauses.max()))
        return silence > enough and (length is None or _unfinished(view))

    @staticmethod
    def _idle(view: View, last: float) -> tuple[float, str]:
        """For how many seconds GPUs that the training still holds are idle, and the file that shows it."""
        machines = [r.machine for r in view.run.readings if r.machine is not None]
        return max(((m.idle_but_held(last) or 0.0, m.path) for m in machines), default=(0.0, ""))


def _unfinished(view: View) -> bool:
    """Whether the training is known to have done less than was planned."""
    length = training_length(view)
    return length is not None and length.done < 0.95 * length.planned


def _appended(view: View) -> bool:
    """Whether the log holds several starts of a program: what follows the last step may be one that never trained."""
    text = [stream for stream in view.run.streams if stream.source == "text"]
    first = view.first_step or 0
    return any(restart.after <= first for stream in text for restart in stream.restarts)


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{number(seconds, 2)} s"
