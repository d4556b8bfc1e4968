"""Reads a run in a folder store of MLflow."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, ClassVar

from postmortem.core.errors import described
from postmortem.core.model import Problem
from postmortem.core.patterns import later
from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.readers import reader
from postmortem.readers.shared.open_end import CUT

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.model import Ended
    from postmortem.readers import Content

_KEY = later(r"^(\w+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_ENDS: dict[str, Ended] = {"1": "running", "3": "completed", "4": "crashed", "5": "killed"}
"""RunStatus of MLflow's service.proto; 2 is a run that has not begun."""
_FOLDERS = frozenset(("metrics", "params", "tags"))


@reader
class MLflow:
    """A run in MLflow's folder store: ``mlruns/EXPERIMENT/RUN/`` with meta.yaml, ``metrics/``, ``params/``, ``tags/``.

    A metric is a file with a line for each value: time in milliseconds, value, step. A slash in its name makes
    folders. The values of all metrics are put in the order of their times. Older versions wrote no step: then the
    values of a metric are counted. Parameters are the configuration.

    Format: mlflow/store/tracking/file_store.py.
    """

    kind: ClassVar[str] = "mlflow"
    priority: ClassVar[int] = 25
    content: ClassVar[Content] = "history"
    other_files: ClassVar[bool] = True

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """The meta.yaml of a run; that of an experiment names no run."""
        return path.name == "meta.yaml" and re.search(rb"^run_(?:uu)?id:", head, re.MULTILINE) is not None

    @staticmethod
    def home(path: Path) -> Path | None:
        """The folder of the run."""
        return path.parent

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the run whose meta.yaml is `path`, with all its metrics."""
        reading = Reading(source=MLflow.kind, path=str(path))
        meta = dict(_KEY.findall(path.read_bytes().decode("utf-8", "replace")))
        reading.started, reading.stopped = (_seconds(meta.get(key, "")) for key in ("start_time", "end_time"))
        reading.ended = _ENDS.get(meta.get("status", ""))
        names = {"run_id": meta.get("run_id") or meta.get("run_uuid"), "display_name": meta.get("run_name")}
        reading.facts |= {key: value.strip("'\"") for key, value in names.items() if value}
        rows: list[tuple[float, str, int, float]] = []
        for file in _below(path.parent / "metrics", reading):
            rows += _values(file, reading, file.relative_to(path.parent / "metrics").as_posix())
        points = PointsBuilder()
        for time, tag, step, value in sorted(rows, key=lambda row: row[0]):
            points.add(tag, step, value, time)
        reading.points = points.build()
        for folder, target in (("params", reading.config), ("tags", reading.facts)):
            for file in _below(path.parent / folder, reading):
                name = file.relative_to(path.parent / folder).as_posix()
                if folder == "params" or name == "mlflow.runName":
                    target["display_name" if folder == "tags" else name] = _text(file, reading).strip()
        return reading


def is_part_of_a_store(path: Path) -> bool:
    """Whether `path` is a metric, a parameter or a tag of a run in a folder store, read with the run's meta.yaml."""
    if _FOLDERS.isdisjoint(path.parts[:-1]):
        return False
    above = [folder for folder in path.parents[:8] if folder.name in _FOLDERS]
    return any((folder.parent / "meta.yaml").is_file() for folder in above)


def _below(folder: Path, reading: Reading) -> list[Path]:
    try:
        return sorted(file for file in folder.rglob("*") if file.is_file())
    except OSError as error:
        reading.problems.append(
            Problem(path=str(folder), what=f"cannot be listed: {described(error)}", lost="the folder", extent="file")
        )
        return []


def _text(file: Path, reading: Reading) -> str:
    try:
        return file.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        what = f"cannot be opened: {error.strerror}"
        reading.problems.append(Problem(path=str(file), what=what, lost="the file", extent="file"))
        return ""


def _values(file: Path, reading: Reading, tag: str) -> list[tuple[float, str, int, float]]:
    """(time, tag, step, value) of each line of a metric's file."""
    rows: list[tuple[float, str, int, float]] = []
    *lines, last = _text(file, reading).split("\n")
    if last.strip():  # its writer ends each line
        kept = f"{len(lines)} lines before it"
        cut = Problem(path=str(file), line=len(lines) + 1, what=CUT, kept=kept, lost="the line", extent="cut")
        reading.problems.append(cut)
    for line, text in enumerate(lines, 1):
        cells = text.split()
        if not cells:
            continue
        try:
            step = int(cells[2]) if len(cells) > 2 else len(rows)
            rows.append((int(cells[0]) / 1000, tag, step, float(cells[1])))
        except (ValueError, IndexError, OverflowError):
            what = "not a line of time, value and step"
            reading.problems.append(Problem(path=str(file), line=line, what=what, lost="the line"))
    return rows


def _seconds(text: str) -> float | None:
    """Milliseconds since the epoch as seconds; None where there is no time."""
    try:
        seconds = float(text) / 1000
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
