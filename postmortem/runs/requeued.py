"""Outputs of one job that was preempted and queued again, which look like those of an array by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from postmortem.runs.file_names import slurm_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PREEMPTED = re.compile(rb"CANCELLED AT (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) DUE TO (?:PREEMPTION|JOB REQUEUE)\b")
_TIME = re.compile(rb"(?<!\d)\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_SAVED = re.compile(rb"sav(?:ed|ing) .{0,80}?(?<!\S)(?P<place>[\w.\-]*/[\w./\-]+)")
_RESUMED = re.compile(rb"(?:load|resum|restor)(?:ed|ing) .{0,80}?(?<!\S)(?P<place>[\w.\-]*/[\w./\-]+)", re.IGNORECASE)
_HEAD, _TAIL = 1 << 16, 1 << 12
_WHOLE = 1 << 24
"""Of a longer file only the last part is searched for the checkpoints that it saved."""


def requeued(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """The files that are the starts of one job, in order, two or more at a time.

    Each but the last ends with its preemption, and the next one begins later and loads a checkpoint from where this
    one saved its own: the tasks of an array do not.
    """
    by_job: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in paths:
        job, _, start = (slurm_job(path) or "").partition("_")
        if start and path.suffix not in (".gz", ".xz", ".zst", ".bz2"):
            by_job[job].setdefault(int(start), path)
    for starts in by_job.values():
        chain: list[Path] = []
        for number in sorted(starts):
            if chain and not _continues(chain[-1], starts[number]):
                if len(chain) > 1:
                    yield chain
                chain = []
            chain.append(starts[number])
        if len(chain) > 1:
            yield chain


def _continues(before: Path, after: Path) -> bool:
    try:
        with before.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            ends = list(_PREEMPTED.finditer(file.read()))
            if not ends:
                return False
            file.seek(max(0, size - _WHOLE))
            saved = {_folder(match["place"]) for match in _SAVED.finditer(file.read())}
        with after.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False  # its reading reports why
    begins = _TIME.search(head)
    loaded = {_folder(match["place"]) for match in _RESUMED.finditer(head)}
    return begins is not None and _when(begins[0]) >= _when(ends[-1]["time"]) and bool(saved & loaded)


def _folder(place: bytes) -> bytes:
    """A path without the number of the step at its end: ``ckpt/step_200.pt`` and ``ckpt/`` are of one folder."""
    return re.sub(rb"/[^/]*\d[^/]*$", b"", place.rstrip(b"./"))


def _when(time: bytes) -> datetime:
    try:
        return datetime.fromisoformat(time.decode())
    except ValueError:
        return datetime.min
