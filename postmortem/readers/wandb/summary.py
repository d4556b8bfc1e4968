"""Reads the final values of a W&B run."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skips
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import leaves, number, step_number, why_no_number
from postmortem.readers.shared.row_table import RowTable
from postmortem.readers.shared.step_column import step_axis

if TYPE_CHECKING:
    from pathlib import Path


@reader
class WandbSummary:
    """``wandb-summary.json``, which W&B clients before 0.31 write: an object with the last value of each key.

    The values belong to the last step: that of the counter column (iter, global_step, …) if one was logged, as in the
    run's history, else `_step`.

    Format: wandb/sdk/internal/file_stream and docs.wandb.ai, "wandb.Run.summary".
    """

    kind: ClassVar[str] = "wandb_summary"
    priority: ClassVar[int] = 20

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file named wandb-summary.json."""
        return path.name == "wandb-summary.json"

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the last value of each key."""
        reading = Reading(source=WandbSummary.kind, path=str(path))
        text, reading.problems = decoded(path.read_bytes(), str(path))
        try:
            summary = json.loads(text)
        except (ValueError, RecursionError) as error:
            reading.problems.append(
                Problem(path=str(path), offset=0, what=f"not valid JSON: {error}", lost="the summary", extent="file")
            )
            return reading
        if not isinstance(summary, dict):
            reading.problems.append(
                Problem(path=str(path), offset=0, what="not a JSON object", lost="the summary", extent="file")
            )
            return reading
        values = {key: value for key, raw in leaves(summary, ".") if (value := number(raw)) is not None}
        own = {key: values.pop(key) for key in list(values) if key.startswith("_")}
        reading.summary = {key: value for key, value in summary.items() if not key.startswith("_")}
        reading.skipped = Skips(Counter(why_no_number(v) for _, v in leaves(reading.summary) if number(v) is None))
        table = RowTable()
        table.add(values.items())
        axis = step_axis(table.columns())
        step = axis.step if axis else np.array([step_number(own.get("_step")) or 0], np.int64)
        reading.step_axis = axis.name if axis else "_step"
        reading.points = table.points(step, own.get("_timestamp", np.nan))
        reading.notes.append("only the last value of each key, at the last step")
        reading.stopped = own.get("_timestamp")
        return reading
