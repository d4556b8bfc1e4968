"""Checks the checkpoints of a run: which hold non-finite values, and the step of those whose names have none.

Needs torch; without it nothing is opened.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.file_map import FileMap
from postmortem.checkpoints.find import named_step
from postmortem.checkpoints.formats import format_of
from postmortem.checkpoints.kept import looked, steps
from postmortem.checkpoints.last_good import looked_at, not_looked_into
from postmortem.core.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Checkpoint, Event

_LARGEST = 4 * 2**30
"""Bytes of the largest checkpoint that a scan opens without --checkpoints, and of all that it opens so for one run."""
_IN_ALL = 8 * _LARGEST
_NEWEST = 512 * 2**20
"""Bytes of the newest checkpoint that a scan opens of a run that shows no error: a fraction of a second to read."""
_SETTLED_SECONDS = 300.0
"""Age at which a checkpoint of a training that still runs is no longer being written."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The checkpoints of a run, some of them inspected.

    `opened` counts the bytes of those; `notes` are for the report.
    """

    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...] = ()
    opened: int = 0


def inspect_run(checkpoints: Sequence[Checkpoint], onset: int | None, last: int | None, *, every: bool) -> Inspected:
    """Opens checkpoints from the newest back to the first good one before step `onset`; with `every`, all of them.

    `last` is the last step of the log. Without torch nothing is opened. If large checkpoints are left out, a
    note says so. Raises MissingExtra if `every` is set and torch is not installed.
    """
    if not _has_torch():
        if every and _has_folder():
            raise MissingExtra("--checkpoints", "replay")
        notes = (
            () if _has_folder() else ("no checkpoint was opened: the working directory is gone, and torch needs one",)
        )
        return Inspected(tuple(checkpoints), notes)
    found = Inspected(tuple(with_steps(checkpoints, last)))
    good = None
    for checkpoint in sorted(found.checkpoints, key=lambda c: (c.step is not None, c.step or 0, c.path), reverse=True):
        if good is not None and checkpoint.step != good.step:
            break  # the other parts of a step (G_60.pth, D_60.pth) are checked as well
        if not every and not _affordable(found, checkpoint):
            what = f"{checkpoint.path} and older checkpoints were not checked; --checkpoints checks all"
            return replace(found, notes=(*found.notes, what))
        found, seen = _look(found, checkpoint)
        if not every and seen.finite and (onset is None or (seen.step is not None and seen.step < onset)):
            good = seen
            if seen.step is None:
                break
    return found


def inspect_newest(checkpoints: Sequence[Checkpoint], *, running: bool) -> Inspected:
    """Opens the newest checkpoint of a run whose log shows no error, and the other parts of its step.

    Larger ones than a scan should take the time for are left alone, with a note. Of a run that is still `running`, one
    that may be being written is passed over.
    """
    found = Inspected(tuple(checkpoints))
    settled = [c for c in checkpoints if not running or time.time() - _written(c.path) > _SETTLED_SECONDS]
    if not settled or not _has_torch():
        return found
    newest = max(settled, key=lambda c: (c.step is not None, c.step or 0, _written(c.path), c.path))
    parts = not_looked_into(newest, settled)
    size = sum(_size(c.path) for c in parts)
    if size > _NEWEST:
        what = f"{newest.path} was not checked, as it is large ({size / 2**30:.1f} GiB); --checkpoints checks all"
        return replace(found, notes=(what,))
    for part in parts:
        found, _ = _look(found, part)
    return found


def inspect_named(found: Inspected, path: str | None) -> Inspected | None:
    """Inspects the checkpoint `path` and the other parts of its step; None if there is nothing more to inspect.

    That is so if all were inspected, torch is not installed, or they are larger than what a scan opens.
    """
    named = next((c for c in found.checkpoints if c.path == path), None)
    unseen = not_looked_into(named, found.checkpoints) if named is not None and _has_torch() else []
    if not unseen:
        return None
    for checkpoint in unseen:
        if not _affordable(found, checkpoint):
            return None
        found, _ = _look(found, checkpoint)
    return found


def lacks_optimizer(path: str) -> bool:
    """Whether a checkpoint in one file is a dict that holds weights and no optimizer, and no file beside it is one.

    False where that is not known: without torch, of a folder, of a file that cannot be read or is no dict.
    """
    file = Path(path)
    found = format_of(file) if file.is_file() and _has_torch() else None
    if found is None or any("optim" in name.lower() for name in os.listdir(file.parent)):
        return False
    mapped = FileMap()
    content = mapped.add(file, found)
    if not isinstance(content, dict) or mapped.problems or not mapped.pieces:
        return False
    return not any("optim" in str(key).lower() for key in content)


def name_parameters(events: Sequence[Event], checkpoints: Sequence[Checkpoint]) -> list[Event]:
    """The events; in each DDP stride warning, `fields["parameters"]` names the saved parameters of that shape."""
    strided = [e for e in events if e.kind == "ddp-stride" and e.fields.get("grad_sizes")]
    if not strided or not checkpoints or not _has_torch():
        return list(events)
    from postmortem.checkpoints.file_map import map_files
    from postmortem.checkpoints.health import part_of

    newest = max(checkpoints, key=lambda c: (c.step is not None, c.step or 0, c.path))
    pieces = [p for p in map_files(Path(newest.path)).pieces if part_of(p.name, math.prod(p.shape)) == "weights"]

    def named(event: Event) -> Event:
        names = [p.name for p in pieces if list(p.shape) == list(event.fields["grad_sizes"])]
        return replace(event, fields={**event.fields, "parameters": names})

    return [named(e) if e in strided else e for e in events]


def _has_torch() -> bool:
    return _has_folder() and importlib.util.find_spec("torch") is not None


def _has_folder() -> bool:
    """Whether the working directory exists: without one, importing torch ends the process."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _affordable(found: Inspected, checkpoint: Checkpoint) -> bool:
    """Whether a scan opens `checkpoint` without --checkpoints, after what it has opened already."""
    size = _size(checkpoint.path)
    return size <= _LARGEST and found.opened + size <= _IN_ALL


def _look(found: Inspected, checkpoint: Checkpoint) -> tuple[Inspected, Checkpoint]:
    shown = looked(Path(checkpoint.path))
    seen = looked_at(checkpoint, shown)
    known = tuple(seen if c is checkpoint else c for c in found.checkpoints)
    notes = found.notes
    if shown.unverified:
        what = f"the checksums of {checkpoint.path} were not compared, as it is large"
        notes = (*notes, f"{what}; postmortem checkpoints --checksums compares them")
    return replace(found, checkpoints=known, notes=notes, opened=found.opened + _size(checkpoint.path)), seen


def with_steps(checkpoints: Sequence[Checkpoint], last: int | None) -> list[Checkpoint]:
    """The checkpoints by step: that of the content if the name has no certain step (``last.pt``, ``model_3.pt``).

    No weights are read. A step far beyond the log's `last` counts something else than the log: the name's is kept.
    If no step is recorded (``epoch_3.pt``), the optimizer's own count is used, if the newest is about as far as
    the log. Without torch the names have to do.
    """
    placed = list(checkpoints)
    if not _has_torch():
        return placed
    counted: dict[int, int] = {}
    for i, c in enumerate(placed):
        if named_step(Path(c.path)) is None and _size(c.path) <= _LARGEST:
            step, count = steps(Path(c.path))
            alike = step is not None and (c.step is None or last is None or step <= 2 * last)
            placed[i] = replace(c, step=step if alike else c.step)
            if step is None and c.step is None and count is not None:
                counted[i] = count
    if last is not None and last <= 2 * max(counted.values(), default=0) <= 4 * last:
        for i, count in counted.items():
            placed[i] = replace(placed[i], step=count)
    return sorted(placed, key=lambda c: (c.step is None, c.step or 0, c.path))


def _written(path: str) -> float:
    """When a file or folder was last written, in seconds since the epoch; 0 if it was deleted meanwhile."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _size(path: str) -> int:
    """Bytes of a file, or of the files in a folder; 0 if it was deleted meanwhile."""
    p = Path(path)
    files = [f for f in p.rglob("*") if f.is_file()] if p.is_dir() else [p]
    return sum(f.stat().st_size for f in files if f.exists())
