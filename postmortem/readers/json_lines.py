"""Reads metrics logged as one JSON object per line."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, ClassVar

from postmortem.core.patterns import later
from postmortem.core.progress import numbered
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.core.skipped import Skip, Skips
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded
from postmortem.readers.shared.json_numbers import is_blank, leaves, number, why_no_number, written_number
from postmortem.readers.shared.json_rows import bad_lines, json_object
from postmortem.readers.shared.long_rows import LongRows
from postmortem.readers.shared.row_table import RowTable, finish, iso_time
from postmortem.readers.shared.step_column import COUNTERS, EPOCHS, LARGEST, plain

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content

_NAMES = (".jsonl", ".ndjson", ".log.json", "scalars.json")
_NUMBER_KEY = later(r'"([^"\\]+)"\s*:\s*(?:-?\d|NaN|-?Infinity|"-?(?:nan|inf)"|\{[^{}\[\]]{0,200}?"mean"\s*:)', re.I)
_HEADER_KEYS = {"env_info", "exp_name", "config"}
_PLAN = later(r"\b(max_epochs|max_iters|total_epochs)\s*=\s*(\d{1,9})\b")
"""The length of the training, in the settings that mmdetection's first line quotes."""
_OF_TRAINING = ("loss", "val_loss", "lr", "grad_norm", "perplexity")
"""Roles that show a log of a training, though nothing in it counts: predictions hold scores, accuracies, rewards."""
_SENTENCE = re.compile(r'"\s*:\s*"[^"\\ ]+(?: [^"\\ ]+){3}')
"""Text of four words or more, as in a data set or a list of predictions."""
_TOTALS = ("total_steps", "max_steps")
_COUNTS = {*COUNTERS, *EPOCHS, "_step"}
_STATISTICS = {"num", "n", "count", "mean", "std", "stddev", "var", "min", "max", "median", "sum", "last"}
"""Keys of an object that sums up one quantity: its mean is the value."""


@reader
class JsonLines:
    """JSON lines: mmdetection's ``.log.json``, mmengine's ``scalars.json``, LLaMA-Factory's ``trainer_log.jsonl``, …

    Each line is an object; nested objects are flattened with "/". The step is found as in a CSV table: a key that
    counts steps, or a short name (`t`, `k`, `batch`) that rises in every row, or `iter` combined with `epoch` where it
    starts again in each epoch. The tags of rows that name held-out data ("mode": "val", "split": "dev") begin with that
    word, "val/"; mmdetection's belong to the end of their epoch. Of an object that sums up one quantity (``{"num": 32,
    "mean": 3.48, "std": 0.89}``, StyleGAN's ``stats.jsonl``) the mean is the value. A number may be written as text.
    Header lines, nulls and values that are not numbers are counted; text in a column of numbers is a Problem, as is a
    line that is not a JSON object.

    Formats: https://jsonlines.org; mmcv/runner/hooks/logger/text.py; llamafactory/train/callbacks.py;
    training_stats.py and training_loop.py of stylegan2-ada-pytorch.
    """

    kind: ClassVar[str] = "jsonl"
    priority: ClassVar[int] = 30
    content: ClassVar[Content] = "table"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file with a JSON object per line: a counter and at least one other number, or metrics and no sentences."""
        text = decoded(head)[0]
        if not text.lstrip().startswith("{"):
            if not path.name.endswith(_NAMES):
                return False
            text = text.partition("\n")[2]  # a file that was truncated while it was written starts inside a line
            if not text.lstrip().startswith("{"):
                return False
        if path.name.endswith(".log.json"):
            return True
        if path.suffix == ".json" and not path.name.endswith("scalars.json") and not _two_objects(text):
            return False
        if path.suffix != ".json" and not path.name.endswith(_NAMES):
            return False
        keys = {plain(key) for key in _NUMBER_KEY.findall(text)}
        counts = keys & _COUNTS
        roles = {role_of(key) for key in keys}
        if counts:
            return len(keys) > len(counts) or roles != {None}
        return not roles.isdisjoint(_OF_TRAINING) and _SENTENCE.search(text) is None

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole file."""
        reading = Reading(source=JsonLines.kind, path=str(path))
        text, reading.problems = decoded(path.read_bytes(), str(path))
        table, long_rows = RowTable(), LongRows()
        times: list[float] = []
        skipped = reading.skipped
        bad: list[int] = []
        lines = text.split("\n")
        for number_of, line in numbered(lines, str(path)):
            if not line.strip():
                continue
            row = json_object(line)
            if row is None:
                bad.append(number_of)
            elif not _HEADER_KEYS.isdisjoint(row):
                skipped[Skip.HEADER] += 1
                reading.config.update((key, int(value)) for key, value in _PLAN.findall(str(row.get("config"))))
            else:
                _add(long_rows.renamed(row), number_of, table, times, skipped)
        columns = table.columns(*_TOTALS)
        reading.config.update(
            (name, int(columns[name][-1])) for name in _TOTALS if name in columns and 0 < columns[name][-1] < LARGEST
        )
        finish(reading, table, times)
        if texts := sum(table.text_columns().values()):
            skipped[Skip.NOT_NUMERIC] += texts
        reading.problems += bad_lines(path, bad, len(lines), len(table))
        return reading


def _add(row: dict[str, Any], line: int, table: RowTable, times: list[float], skipped: Skips) -> None:
    """Appends a row of the file to the table."""
    cells: list[tuple[str, float]] = []
    time = math.nan
    for key, raw in leaves(_with_means(row, skipped)):
        value = number(raw)
        if value is None and isinstance(raw, str) and (plain(key) in _COUNTS or role_of(key) is not None):
            value = written_number(raw)
        if value is not None:
            cells.append((key, value))
        elif is_blank(raw):
            table.blanks[key] += 1
        elif not isinstance(raw, str):
            skipped[why_no_number(raw)] += 1
        elif (moment := iso_time(raw)) is not None:
            time = moment
        else:
            table.add_text(key, line, raw)
    if cells:
        table.add(cells)
        times.append(time)
    else:
        skipped[Skip.NO_NUMBER] += 1


def _with_means(row: dict[str, Any], skipped: Skips) -> dict[str, Any]:
    """The row, with the mean in the place of each object of statistics; their other numbers are counted."""
    means = {
        key: found["mean"]
        for key, found in row.items()
        if isinstance(found, dict) and "mean" in found and len(found) > 1 and found.keys() <= _STATISTICS
    }
    if means:
        skipped[Skip.BESIDE_MEAN] += sum(len(row[key]) - 1 for key in means)
    return row | means


def _two_objects(text: str) -> bool:
    first, _, rest = text.partition("\n")
    return json_object(first) is not None and rest.lstrip().startswith("{")
