"""Saved weights that a scan looks into: which hold non-finite values, and what step those say whose names do not. Needs torch; without
it nothing is opened."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import named_step
from postmortem.core.errors import MissingExtra

if TYPE_CHECKING:
    from postmortem.core.run import Run

_LOOK_BACK = 8
"""Checkpoints that a scan of a failed run opens unasked: as far back as this, and none larger than _LOOK_BYTES."""
_LOOK_BYTES = 4 * 2**30
_OPTIMIZER_STATE = re.compile(r"optim|exp_avg|momentum_buffer|(^|[./])state[./]", re.IGNORECASE)


def look_into(run: Run, onset: int | None, last: int | None, *, every: bool) -> bool:
    """Opens saved weights from the newest back to the first good one from before `onset`, all of them where `every`.

    False where none was opened: torch is not installed, or they are larger than what a scan opens unasked.
    """
    if importlib.util.find_spec("torch") is None:
        if every:
            raise MissingExtra("--checkpoints", "replay")
        return False
    from postmortem.checkpoints.health import inspect

    _ask_for_steps(run, last)
    looked, good = 0, None
    newest_first = sorted(run.checkpoints, key=lambda c: (c.step is not None, c.step or 0, c.path), reverse=True)
    for checkpoint in newest_first:
        if good is not None and checkpoint.step != good:
            break  # the other parts of a step (G_60.pth, D_60.pth) are looked into as well
        if not every and (looked >= _LOOK_BACK or _size(checkpoint.path) > _LOOK_BYTES):
            run.notes.append(f"{checkpoint.path} and older checkpoints were not looked into; --checkpoints does")
            break
        health = inspect(Path(checkpoint.path))
        looked += 1
        step = checkpoint.step if checkpoint.step is not None else health.step
        problem = next((p.what for p in health.problems), None) if health.finite is None else None
        bad = tuple(t.name for t in health.bad)
        run.checkpoints[run.checkpoints.index(checkpoint)] = replace(checkpoint, step=step, finite=health.finite, nonfinite=bad, problem=problem)
        if not every and health.finite and (onset is None or (step is not None and step < onset)):
            good = step
            if step is None:
                break
    return looked > 0


def _ask_for_steps(run: Run, last: int | None) -> None:
    """Lets checkpoints whose names tell no step for sure (``last.pt``, ``model_3.pt``) say theirs; no weights are read.

    One far beyond the log's `last` step counts something else than the log: the name's is kept. Where nothing says a step
    (``epoch_3.pt``), the optimizer's count does, if the newest is about as far as the log.
    """
    from postmortem.checkpoints.file_map import map_files, optimizer_count

    counted: dict[int, int] = {}
    for i, c in enumerate(run.checkpoints):
        if named_step(Path(c.path)) is None and _size(c.path) <= _LOOK_BYTES:
            seen = map_files(Path(c.path))
            alike = seen.step is not None and (c.step is None or last is None or seen.step <= 2 * last)
            run.checkpoints[i] = replace(c, step=seen.step if alike else c.step)
            if seen.step is None and c.step is None and (count := optimizer_count(seen)) is not None:
                counted[i] = count
    if last is not None and last <= 2 * max(counted.values(), default=0) <= 4 * last:
        for i, count in counted.items():
            run.checkpoints[i] = replace(run.checkpoints[i], step=count)
    run.checkpoints.sort(key=lambda c: (c.step is None, c.step or 0, c.path))


def name_parameters(run: Run) -> None:
    """Adds to each DDP stride warning the saved parameters that have the gradient's shape and could be meant (`fields["parameters"]`)."""
    strided = [i for i, e in enumerate(run.event_list) if e.kind == "ddp-stride" and e.fields.get("grad_sizes")]
    if not strided or not run.checkpoints or importlib.util.find_spec("torch") is None:
        return
    from postmortem.checkpoints.file_map import map_files

    newest = max(run.checkpoints, key=lambda c: (c.step is not None, c.step or 0, c.path))
    pieces = [p for p in map_files(Path(newest.path)).pieces if not _OPTIMIZER_STATE.search(p.name)]
    for i in strided:
        event = run.event_list[i]
        names = [p.name for p in pieces if list(p.shape) == list(event.fields["grad_sizes"])]
        run.event_list[i] = replace(event, fields={**event.fields, "parameters": names})


def _size(path: str) -> int:
    """Bytes of a file, or of the files in a folder; 0 where it vanished in the meantime."""
    p = Path(path)
    files = [f for f in p.rglob("*") if f.is_file()] if p.is_dir() else [p]
    return sum(f.stat().st_size for f in files if f.exists())
