"""Reads what nvidia-smi logs of the GPUs beside a training."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.machine import MachineLog
from postmortem.core.model import Problem
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.readers import reader
from postmortem.readers.shared.decode import decoded, head_text
from postmortem.readers.shared.json_numbers import written_number
from postmortem.readers.shared.open_end import CUT, NOT_USED
from postmortem.readers.shared.row_table import iso_time

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.readers import Content

_COLUMNS = {"timestamp": "time", "index": "gpu", "utilization.gpu": "busy", "memory.used": "memory"}


@reader
class NvidiaSmi:
    """A table of samples, from ``nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv``.

    It is no run of its own: beside the log of a training, it shows what the GPUs did after the last line. The columns
    may be in any order and others may stand between them; ``nounits`` and ``[N/A]`` are understood. Without a run, use
    and memory of each GPU are shown by row.

    Format: nvidia-smi --help-query-gpu.
    """

    kind: ClassVar[str] = "nvidia-smi"
    priority: ClassVar[int] = 25
    content: ClassVar[Content] = "monitor"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A table whose header names a time and what nvidia-smi measures."""
        names = _header(head_text(head).lstrip("\ufeff").partition("\n")[0])
        return "time" in names and ("busy" in names or "memory" in names)

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole table."""
        reading = Reading(source=NvidiaSmi.kind, path=str(path), step_axis="row")
        text, reading.problems = decoded(path.read_bytes(), str(path))
        lines = text.lstrip("\ufeff").split("\n")
        names = _header(lines[0])
        rows: list[tuple[float, float, float, float]] = []
        wrong: list[int] = []
        if (last := lines.pop()).strip() and lines:
            whole = last.count(",") == len(names) - 1
            what, lost = (NOT_USED, "") if whole else (CUT, "this line")
            kept = f"{len(lines) - 1} lines before it"
            at = len(lines) + 1
            reading.problems.append(Problem(path=str(path), line=at, what=what, kept=kept, lost=lost, extent="cut"))
        for number, line in enumerate(lines[1:], 2):
            cells = dict(zip(names, (cell.strip() for cell in line.split(",")), strict=False))
            moment = iso_time(cells.get("time", "").replace("/", "-"))
            if moment is not None:
                gpu, busy, memory = (_number(cells.get(name, "")) for name in ("gpu", "busy", "memory"))
                rows.append((moment, gpu, busy, memory))
            elif line.strip() and _header(line) != names:
                wrong.append(number)
        if wrong:
            what = f"{len(wrong)} lines without a time, the first of them here"
            problem = Problem(path=str(path), line=wrong[0], what=what, kept=f"{len(rows)} rows", lost="these lines")
            reading.problems.append(problem)
        if rows:
            _take(reading, np.array(sorted(rows, key=lambda row: row[0])))
        return reading


def _take(reading: Reading, table: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """Keeps the samples (n, 4), in order of time, as points and as a `MachineLog`."""
    gpu = np.where(np.isfinite(table[:, 1]), table[:, 1], 0).astype(np.int64)
    reading.machine = MachineLog(reading.path, table[:, 0], gpu, table[:, 2], table[:, 3])
    points = PointsBuilder()
    for k in distinct(gpu):
        of_gpu = table[gpu == k]
        for tag, column in (("busy", 2), ("memory", 3)):
            known = np.flatnonzero(np.isfinite(of_gpu[:, column]))
            if len(known):
                points.extend(f"gpu{k}/{tag}", known, of_gpu[known, column], of_gpu[known, 0])
    reading.points = points.build()
    reading.started, reading.stopped = float(table[0, 0]), float(table[-1, 0])


def _header(line: str) -> list[str]:
    """What each column holds, by the words that nvidia-smi puts above it; the others keep their names."""
    names = (re.sub(r"\s*\[.*", "", name).strip() for name in line.split(","))
    return [_COLUMNS.get(name, name) for name in names]


def _number(cell: str) -> float:
    value = written_number(cell.strip().removesuffix("%").removesuffix("MiB").rstrip())
    return np.nan if value is None else value
