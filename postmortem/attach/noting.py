"""What is noted once a watched program has ended, so that a scan finds it: the logged step of each capture, how the
program ended and at which step it failed."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.captures import note_step
from postmortem.checkpoints.histories import note

if TYPE_CHECKING:
    from postmortem.attach.outcome import Outcome
    from postmortem.core.culprit import ReplayResult


def note_steps(result: ReplayResult, log: Path | None, history: Path | None, numbers: dict[int, int]) -> None:
    """Writes into the captures which step theirs is in the program's log and in the history (tick -> its `numbers`)."""
    for capture in result.captures:
        if "path" in capture:
            tick, step = capture["tick"], capture["step"]
            logs = {log: step} if log is not None and step is not None else {}
            logs |= {history: numbers.get(tick, tick)} if history is not None else {}
            with suppress(OSError):  # it is only not known then
                note_step(Path(capture["path"]), step, logs)


def note_end(outcome: Outcome, history: Path, numbers: dict[int, int], *, stopped: bool) -> None:
    """Notes in the history how the program ended, and its fault. stopped: a fault was to end it. OSError."""
    process = outcome.process
    facts: dict[str, Any] = {"code": outcome.code, "time": time.time(), "fault": None}
    if process is not None and process.fault is not None:
        tick = int(process.fault["tick"])
        what, step = process.fault["what"], numbers.get(tick, tick)
        facts["fault"] = {"what": what, "step": step, "pid": process.pid, "stopped": stopped}
    note(history, **facts)
