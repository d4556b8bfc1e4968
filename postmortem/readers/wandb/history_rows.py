"""The rows of a W&B history as points: shared by the logs of the client and the histories of older clients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.skipped import Skip
from postmortem.readers.shared.json_numbers import leaves, number, step_number, why_no_number
from postmortem.readers.shared.row_table import RowTable, finish
from postmortem.readers.shared.step_column import EPOCHS, Axis, plain, step_axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.core.reading import Reading

OWN_KEYS = {"_step", "_runtime", "_timestamp", "_wandb"}
SEPARATOR = "."  # as W&B itself joins nested keys
_MEDIA = {
    "histogram": Skip.HISTOGRAMS,
    "image-file": Skip.IMAGES,
    "images/separated": Skip.IMAGES,
    "audio-file": Skip.AUDIO,
}


class History:
    """The rows of a history: a table, and the step and the time of each row."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.table = RowTable()
        self.steps: list[int] = []
        self.times: list[float] = []

    def add(self, row: Mapping[str, Any], step: int | None = None) -> None:
        """The values of one or more calls of `log` with the same step; nested ones with their keys joined."""
        values: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                values.update(leaves(value, SEPARATOR, name + SEPARATOR))
            else:
                values[name] = value
        skipped = self.reading.skipped
        media = tuple(name.removesuffix("_type") for name in values if name.endswith("._type"))
        cells: dict[str, float] = {}
        for name, value in values.items():
            numeric = number(value)
            if media and name.startswith(media):
                if name.endswith("._type"):
                    skipped[_MEDIA.get(str(value), Skip.MEDIA)] += 1
            elif numeric is not None and not name.startswith("_wandb."):
                cells[name] = numeric
            elif value is not None:
                skipped[why_no_number(value)] += 1
        own = step_number(cells.get("_step") if step is None else step)
        self.steps.append(len(self.table) if own is None else own)
        self.times.append(cells.get("_timestamp", math.nan))
        self.table.add(cells.items())

    def finish(self, declared_steps: Mapping[str, str]) -> None:
        """Turns the rows into the points of the reading, on the best step axis available.

        `declared_steps` are the columns that `define_metric` declared as the step of a tag, or of the tags
        that match a pattern.
        """
        own = Axis("_step", np.array(self.steps, np.int64), (), "steps are W&B's own row counter, _step")
        # that of all tags first; one for some tags counts where most rows have it, an epoch only for all tags
        steps = sorted(declared_steps.items(), key=lambda item: item[0] != "*")
        declared = list(dict.fromkeys(s for pattern, s in steps if pattern == "*" or plain(s) not in EPOCHS))
        axis = step_axis(self.table.columns(*declared), declared=declared)
        axis = own if axis is None or len(axis.wrong) else axis
        started = self.reading.started
        finish(self.reading, self.table, self.times, axis._replace(columns=tuple(OWN_KEYS)))
        self.reading.started = started or self.reading.started
