"""What is noted once a watched program has ended, so that a scan finds it: the logged step of each capture, how the
program ended and at which step it failed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.captures import note_step
from postmortem.checkpoints.histories import CULPRIT, note, note_culprit
from postmortem.core.errors import PostmortemError
from postmortem.reporters.replay_text import replay_lines

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


def save(result: ReplayResult, home: Path, history: Path | None) -> Path:
    """Writes the answer as text and as JSON into a new folder of `home`, and notes in the history where it is -> the
    text. PostmortemError."""
    folder = home / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CULPRIT).write_text(json.dumps(result.as_json(), indent=2, allow_nan=False) + "\n")
        (folder / "culprit.txt").write_text("\n".join(replay_lines(result)) + "\n", encoding="utf-8")
    except OSError as error:
        raise PostmortemError(f"{folder}: {error.strerror or error}") from error
    if history is not None:
        note_culprit(history, folder / CULPRIT)
    return folder / "culprit.txt"


def note_end(outcome: Outcome, history: Path, numbers: dict[int, int], *, stopped: bool) -> None:
    """Notes in the history how the program ended, and its fault. stopped: a fault was to end it. OSError."""
    process = outcome.process
    facts: dict[str, Any] = {"code": outcome.code, "time": time.time(), "fault": None}
    if process is not None and process.fault is not None:
        tick = int(process.fault["tick"])
        what, step = process.fault["what"], numbers.get(tick, tick)
        facts["fault"] = {"what": what, "step": step, "pid": process.pid, "stopped": stopped}
    note(history, **facts)
