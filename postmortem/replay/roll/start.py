"""Which checkpoint a replay starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.file_map import map_files
from postmortem.checkpoints.find import find_checkpoints, step_of
from postmortem.checkpoints.health import inspect
from postmortem.core.errors import ReplayError

if TYPE_CHECKING:
    from postmortem.core.model import Checkpoint
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.replay.roll.aim import Aim


def choose_checkpoint(target: Path, run: Run | None, report: RunReport | None, aim: Aim, given: Path | None) -> Path:
    """The checkpoint to start from: the one given, the diagnosis' last good one, else the newest finite one before the step.

    ReplayError where there is none, or where the one given lies after the step.
    """
    known = list(run.checkpoints) if run is not None and run.checkpoints else find_checkpoints(target)
    good = report.diagnosis.last_good_checkpoint if report is not None and report.diagnosis is not None else None
    steps = {Path(c.path).resolve(): c.step for c in known}
    if given is not None:
        return _given(given, aim, good, steps)
    if run is None and len(known) == 1 and Path(known[0].path) == target:
        return target
    if not known:
        raise ReplayError(f"no checkpoint in {target}: give --checkpoint PATH")
    step = _step(Path(good), steps) if good is not None else None
    if good is not None and _before(step, aim) and (step is None or step != aim.step):
        return Path(good)
    known = [c if c.step is not None else _with_step(c) for c in known]
    candidates = [c for c in known if _before(c.step, aim)]
    if not candidates:
        first = min(known, key=lambda c: c.step or 0)
        raise ReplayError(f"no checkpoint before step {aim.step}: the earliest is {first.path} (step {first.step})")
    return Path(_newest_finite(candidates, aim).path)


def _with_step(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint whose name tells no step (``last.pt``, ``epoch_3.pt``), with the one that its content says."""
    return replace(checkpoint, step=map_files(Path(checkpoint.path)).step)


def _step(path: Path, known: dict[Path, int | None]) -> int | None:
    """The step of a checkpoint as the scan of its run understood it, else as its name says."""
    step = known.get(path.resolve())
    return step_of(path) if step is None else step


def _given(path: Path, aim: Aim, good: str | None, known: dict[Path, int | None]) -> Path:
    if not path.exists():
        raise ReplayError(f"no such checkpoint: {path}")
    step = _step(path, known)
    if not _before(step, aim):
        tail = f"; the last good one is {good}" if good and _step(Path(good), known) != step else ""
        raise ReplayError(
            f"the checkpoint {path.name} is of step {step}, not before step {aim.step}, where the replay is to end{tail}"
        )
    return path


def _before(step: int | None, aim: Aim) -> bool:
    """Whether a checkpoint of `step` can lead to the step aimed at: one that saves the step to come may be of that step."""
    return step is None or aim.step is None or step <= aim.step


def _newest_finite(candidates: list[Checkpoint], aim: Aim) -> Checkpoint:
    """The newest that is finite; where none is, the newest of all: a run that started from it is told so by the replay.

    One saved at the very step aimed at comes last: whether it is from before or after that step only the log tells.
    """
    ordered = sorted(candidates, key=lambda c: (c.step != aim.step, c.step is not None, c.step or 0), reverse=True)
    for c in ordered:
        if c.finite or (c.finite is None and inspect(Path(c.path)).finite):
            return c
    return ordered[0]
