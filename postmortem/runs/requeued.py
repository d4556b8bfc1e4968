"""Outputs of one job that was preempted and queued again, under its old id or a new one."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from postmortem.core.patterns import later
from postmortem.runs.file_names import slurm_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PREEMPTED = later(rb"CANCELLED AT (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) DUE TO (?:PREEMPTION|JOB REQUEUE)\b")
_TIME = later(
    rb"(?<!\d)(?P<iso>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)"
    rb"|\b[A-Z][a-z]{2} (?P<day>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?:[A-Z]{2,5} )?(?P<year>\d{4})\b"  # date
)
_PLACE = rb".{0,80}?(?:(?<!\S)(?P<place>[\w.\-]*/[\w./\-]+)|\b(?:to|from|in|into) (?P<name>[\w.\-]+))"
_SAVED = later(rb"sav(?:ed|ing) " + _PLACE)
_RESUMED = later(rb"(?:load|resum|restor)(?:ed|ing) " + _PLACE, re.IGNORECASE)
_HEAD, _TAIL = 1 << 16, 1 << 12
_WHOLE = 1 << 24
"""Of a longer file only the last part is searched for the checkpoints that it saved."""


def requeued(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """The files that are the starts of one job, in order, two or more at a time.

    Each but the last ends with its preemption, and the next one begins later and loads a checkpoint from where this
    one saved its own: the tasks of an array do not. Ids of jobs rise with time, so do the numbers of starts.
    """
    known: dict[tuple[int, int], Path] = {}
    for path in paths:
        job, _, start = (slurm_job(path) or "").partition("_")
        if job.isdigit() and path.suffix not in (".gz", ".xz", ".zst", ".bz2"):
            known.setdefault((int(job), int(start or 0)), path)
    waiting: list[list[Path]] = []
    """Chains whose last file may still be continued."""
    for path in (known[key] for key in sorted(known)):
        chain = next((chain for chain in reversed(waiting) if _continues(chain[-1], path)), None)
        if chain is None:
            waiting.append([path])
        else:
            chain.append(path)
    yield from (chain for chain in waiting if len(chain) > 1)


def _continues(before: Path, after: Path) -> bool:
    try:
        with before.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            ends = list(_PREEMPTED.finditer(file.read()))
            if not ends:
                return False
            file.seek(max(0, size - _WHOLE))
            saved = {_folder(match) for match in _SAVED.finditer(file.read())}
        with after.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False  # its reading reports why
    begins = _TIME.search(head)
    loaded = {_folder(match) for match in _RESUMED.finditer(head)}
    return begins is not None and _when(begins) >= _when(ends[-1]) and bool(saved & loaded)


def _folder(match: re.Match[bytes]) -> bytes:
    """A path without the number of the step at its end: ``ckpt/step_200.pt`` and ``ckpt/`` are of one folder."""
    return re.sub(rb"/[^/]*\d[^/]*$", b"", (match["place"] or match["name"]).rstrip(b"./"))


def _when(match: re.Match[bytes]) -> datetime:
    found = match.groupdict()
    try:
        if day := found.get("day"):
            return datetime.strptime(f"{day.decode()} {match['year'].decode()}", "%b %d %H:%M:%S %Y")
        return datetime.fromisoformat((found.get("iso") or match["time"]).decode())
    except ValueError:
        return datetime.min
