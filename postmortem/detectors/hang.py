from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.collectives import waiting
from postmortem.core.model import Finding
from postmortem.core.printable import number
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View


@detector
class Hang(BaseDetector):
    """The run hung: a collective timed out, or nothing was logged for a long time before the end.

    What it looks for: a message about it in the log (a watchdog, a timeout of a collective), or a time between the last
    logged step and the end of the log that is far longer than any time between two rows.

    Why it matters: the machines were occupied without computing. The rank that is missing from the collective is the
    one to investigate.

    How: the events, or else the wall times: nothing logged for more than `silence` seconds and for more than `factor`
    times the longest pause before.

    Typical causes: one rank took another branch, left the loop early or crashed; a slow or dead network; a waiting data
    loader worker; a lock in a forked process.

    What to try: use the flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE), run py-spy dump on every rank, set
    NCCL_DEBUG=INFO.

    Known false positives: a long evaluation or upload after the last logged step.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Seconds without a log line, and multiple of the longest pause before."""

        silence: float = 1800.0
        factor: float = 20.0

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
        stopped = max((r.stopped for r in view.run.readings if r.stopped is not None), default=None)
        longest = max((s for s in view.series if np.isfinite(s.wall_time).sum() > 5), key=len, default=None)
        if stopped is None or longest is None:
            return None
        wall = longest.wall_time[np.isfinite(longest.wall_time)]
        pause, silence = float(np.diff(wall).max()), stopped - float(wall.max())
        if silence <= max(self.options.silence, self.options.factor * pause):
            return None
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            message=f"nothing was logged in the last {_span(silence)}; the longest pause before was {_span(pause)}",
            tag=longest.tag,
            step=view.last_step,
            evidence={"silence_seconds": silence, "longest_pause_seconds": pause},
        )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{number(seconds, 2)} s"
