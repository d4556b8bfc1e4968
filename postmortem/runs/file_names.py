"""What the name of a log says: the rank, the Slurm job, the process that wrote it, the run it is named after."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.readers.shared.rotated import GRID_OUTPUT, rotated

if TYPE_CHECKING:
    from pathlib import Path

_EVENT_FILE = re.compile(
    r"tfevents\.(?P<time>\d+)\.(?P<writer>.+?\.\d+)\.\d+(?:[-._]?[A-Za-z].*)?$"  # host.process.count, a suffix
    r"|tfevents\.(?P<time_>\d+)\.(?P<host>.+?)(?:\.\d+)?(?:\.v2)?$"  # of older writers
)
_RANK = re.compile(r"[-_.]?(?:global_?)?(?:rank|worker|proc|task)[-_.]?(?P<rank>\d{1,5})(?!\d)", re.IGNORECASE)
_PADDLE = re.compile(r"^workerlog\.(?P<rank>\d{1,4})$")
"""The output of a rank, as paddle.distributed.launch names it."""
_RANK_FOLDER = re.compile(r"rank[-_]?(\d+)")
_TORCHRUN = re.compile(r"attempt_\d+/(?P<rank>\d+)/std(?:out|err)\.log$")
_JOB = re.compile(r"(?<!\d)(?P<job>\d{4,10})(?:_(?P<array>\d+))?(?!\d)")
_ENDINGS = re.compile(
    r"(?:\.(?:log|(?:std)?(?:out|err)|txt|csv|tsv|jsonl?|o|e|gz|xz|zst|bz2|\d{1,3}(?=\.(?:gz|xz|zst|bz2)$)))+$",
    re.IGNORECASE,
)
_STREAM = re.compile(r"(?:^|[-_.])(?:std)?(?:out|err(?:or)?|log)$", re.IGNORECASE)
_STANDARD_TABLES = {
    *("metrics", "results", "progress", "history", "log", "scalars"),
    *("train", "training", "val", "valid", "validation", "test"),
}


def run_key(path: Path, *, table: bool = False) -> str:
    """The part of a file name that names its run: without ending, rank and stream (``a_rank0.err`` -> ``a``).

    Grid Engine and PBS call the output of job 812 of ``train`` ``train.o812`` and ``train.e812``: ``train.812``.

    Empty for a `table` with a usual name, such as metrics.csv: it is that of its folder.
    """
    part = rotated(path.name)
    name = GRID_OUTPUT.sub(".", part.base if part else path.name)
    stem = _STREAM.sub("", _RANK.sub("", _ENDINGS.sub("", _PADDLE.sub("log", name))))
    return "" if table and stem.lower() in _STANDARD_TABLES else stem


def rank_in_name(path: Path) -> int:
    """The rank in a file name, -1 if there is none."""
    found = _RANK.search(path.stem) or _PADDLE.match(path.name)
    return int(found["rank"]) if found else -1


def rank_of_folder(folder: Path) -> int:
    """The rank of a folder named ``rank_3``, -1 for any other."""
    found = _RANK_FOLDER.fullmatch(folder.name)
    return int(found[1]) if found else -1


def torchrun_rank(path: Path) -> int:
    """The rank of a file that ``torchrun --redirects`` wrote (``attempt_0/3/stderr.log``), -1 for any other."""
    found = _TORCHRUN.search(path.as_posix())
    return int(found["rank"]) if found else -1


def slurm_job(path: Path) -> str | None:
    """The Slurm job id in a file name, with its array index; a year or a date is none."""
    for match in _JOB.finditer(path.name):
        job = match["job"]
        if not (len(job) in (4, 8) and job.startswith(("19", "20"))):
            return match[0] if match["array"] else job
    return None


def event_writer(path: Path) -> str | None:
    """Host and process that wrote an event file."""
    found = _EVENT_FILE.search(path.name)
    return found["writer"] or found["host"] if found else None


def creation_time(path: Path) -> float:
    """The time in the name of an event file, in seconds since the epoch; 0 for any other file."""
    found = _EVENT_FILE.search(path.name)
    return float(found["time"] or found["time_"]) if found else 0.0


def order_of_writing(path: Path) -> int:
    """What sorts the files of a run as they were written: the time of an event file, else the Slurm job, else 0."""
    return int(creation_time(path)) or int((slurm_job(whole_log(path)) or "0").split("_")[0])


def place_in_log(path: Path) -> tuple[str, int]:
    """What sorts the parts of one log: those that were set aside come before the last one, which has its name."""
    part = rotated(path.name)
    return str(whole_log(path)), part.place if part else 1


def whole_log(path: Path) -> Path:
    """The log that a file is a part of: ``train.log`` for ``train.log.1``, which need not be there."""
    part = rotated(path.name)
    return path.with_name(part.base) if part else path
