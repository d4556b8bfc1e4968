"""Reads the state file of the Hugging Face Trainer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from postmortem.checkpoints.find import names_a_checkpoint
from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import is_blank, leaves, number, step_number, why_no_number
from postmortem.readers.shared.row_table import RowTable

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content

_CONFIG = (
    *("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size"),
    *("best_model_checkpoint", "best_metric", "best_global_step", "trial_name"),
)
_SCALAR = later(
    r'"(\w+)"\s*:\s*(-?(?:0|[1-9]\d{0,300})(?:\.\d+)?(?:[eE][+-]?\d+)?|"[^"\\\x00-\x1f]*"|null|true|false)\s*[,}]'
)


@reader
class TrainerState:
    """``trainer_state.json``, which the transformers Trainer writes into every checkpoint folder.

    `log_history` has one object per log call, with its step; loss, grad_norm and learning_rate come at full precision,
    NaN as the bare word. Of a file that was cut while it was written, the complete entries are kept. The run is
    completed where `global_step` has reached `max_steps`.

    Format: transformers/trainer_callback.py, class TrainerState.
    """

    kind: ClassVar[str] = "trainer_state"
    priority: ClassVar[int] = 20
    content: ClassVar[Content] = "snapshot"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file named trainer_state.json."""
        return path.name == "trainer_state.json"

    @staticmethod
    def home(path: Path) -> Path | None:
        """The folder above that of a checkpoint."""
        return path.parent.parent if names_a_checkpoint(path.parent) else None

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a state file, or what is left of a damaged one."""
        reading = Reading(source=TrainerState.kind, path=str(path))
        text, reading.problems = decoded(path.read_bytes(), str(path))
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            state = _recovered(text, reading)
        if not isinstance(state, dict) or not isinstance(state.get("log_history", []), list):
            reading.problems.append(
                Problem(
                    path=str(path), what="not a trainer state: it has no log_history", kept="nothing", extent="file"
                )
            )
            return reading
        _fill(reading, state)
        return reading


def _fill(reading: Reading, state: dict[str, Any]) -> None:
    table = RowTable()
    steps: list[int] = []
    for entry in state.get("log_history", []):
        step = step_number(entry.get("step")) if isinstance(entry, dict) else None
        if step is None:
            reading.skipped[Skip.NO_STEP] += 1
            continue
        found = {key: (number(value), value) for key, value in leaves(entry) if key != "step"}
        table.blanks.update(key for key, (_, raw) in found.items() if is_blank(raw))
        for why in (why_no_number(raw) for value, raw in found.values() if value is None and not is_blank(raw)):
            reading.skipped[why] += 1
        table.add((key, value) for key, (value, _) in found.items() if value is not None)
        steps.append(step)
    row_steps = np.array(steps, np.int64)
    reading.points = table.points(row_steps)
    reading.blanks = dict(table.blanks)
    reading.row_steps = row_steps if reading.blanks else None
    reading.config = {key: state[key] for key in _CONFIG if state.get(key) is not None}
    done, planned = number(state.get("global_step")), number(state.get("max_steps"))
    if done is not None and planned and done >= planned > 0:
        reading.ended = "completed"
    else:
        reading.facts["snapshot"] = True
    reading.notes.append("steps are taken from log_history")


def _recovered(text: str, reading: Reading) -> dict[str, Any]:
    """What is left of a file that is not valid JSON: its scalars, and the complete entries of its log_history."""
    state: dict[str, Any] = {}
    key = re.search(r'"log_history"\s*:\s*\[', text)
    outside = text if key is None else text[: key.start()]
    entries: list[Any] = []
    at = stop = key.end() if key else len(text)
    decoder = json.JSONDecoder()
    while key and (begin := text.find("{", at)) >= 0 and "]" not in text[at:begin]:
        try:
            entry, at = decoder.raw_decode(text, begin)
            entries.append(entry)
            stop = at
        except (ValueError, RecursionError):  # damaged: the next entry may be whole
            at = begin + 1
    outside += text[stop:] if key else ""
    for name, value in _SCALAR.findall(outside):
        state.setdefault(name, json.loads(value))
    state["log_history"] = entries
    cut = not text.rstrip().endswith("}")
    what = "truncated: the JSON is not closed" if cut else "damaged JSON"
    lost = "the incomplete entry and everything after it" if cut else "the content around the damage"
    line = text.count("\n", 0, stop) + 1
    reading.problems.append(
        Problem(
            path=reading.path,
            line=line,
            what=what,
            kept=f"{len(entries)} entries of log_history",
            lost=lost,
            extent="cut" if cut else "records",
        )
    )
    return state if key or state else {"log_history": None}
