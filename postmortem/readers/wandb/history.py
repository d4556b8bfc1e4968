"""Reads the history of a W&B run as older clients kept it, and as a copy of a run in W&B's cloud has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.progress import numbered
from postmortem.core.reading import Reading
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_rows import bad_lines, json_object
from postmortem.readers.shared.row_table import iso_time
from postmortem.readers.wandb.history_rows import History

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Ended

NAME, METADATA = "wandb-history.jsonl", "wandb-metadata.json"
_ENDS: dict[str, Ended] = {
    "finished": "completed",
    "failed": "crashed",
    "crashed": "crashed",
    "killed": "killed",
    "preempted": "preempted",
    "running": "running",
}


@reader
class WandbHistory:
    """``wandb-history.jsonl``, which W&B clients before 0.10 write in each run folder: an object for each row.

    `_step` and `_timestamp` are step and wall time as in the logs of newer clients, with the same rules for other
    counters, nested keys and media. ``wandb-metadata.json`` beside it says how the run ended.

    Format: wandb/wandb_history.py and wandb/meta.py of the client 0.9.
    """

    kind: ClassVar[str] = "wandb_history"
    priority: ClassVar[int] = 20
    other_files: ClassVar[bool] = True

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file named wandb-history.jsonl."""
        return path.name == NAME

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads all rows."""
        reading = Reading(source=WandbHistory.kind, path=str(path), step_axis="_step")
        text, reading.problems = decoded(path.read_bytes(), str(path))
        history, bad = History(reading), []
        lines = text.split("\n")
        for number, line in numbered(lines, str(path)):
            row = json_object(line)
            if row is not None:
                history.add(row)
            elif line.strip():
                bad.append(number)
        metadata = _metadata(path.with_name(METADATA))
        steps = metadata.get("stepMetrics")
        history.finish(steps if isinstance(steps, dict) else {})
        _add_identity(reading, metadata)
        reading.problems += bad_lines(path, bad, len(lines), len(history.table))
        return reading


def _metadata(path: Path) -> dict[str, Any]:
    """What the client wrote about the program; nothing if it cannot be read, as no number is lost with it."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _add_identity(reading: Reading, metadata: dict[str, Any]) -> None:
    """How the run ended, when it began, and its names."""
    code = metadata.get("exitcode")
    if isinstance(code, int):
        reading.facts["exit_code"] = code
        reading.ended = "completed" if code == 0 else "crashed"
    reading.ended = _ENDS.get(str(metadata.get("state")), reading.ended)
    if isinstance(began := metadata.get("startedAt"), str):
        reading.started = iso_time(began) or reading.started
    names = {"host": "host", "project": "project", "display_name": "name", "run_id": "id"}
    reading.facts |= {fact: value for fact, key in names.items() if isinstance(value := metadata.get(key), str)}
