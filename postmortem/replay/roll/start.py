"""Which checkpoint a replay starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.file_map import map_files
from postmortem.checkpoints.find import find_checkpoints, step_of
from postmortem.checkpoints.health import inspect
from postmortem.checkpoints.last_good import Looked, look_for_last_good, looked_at
from postmortem.core.errors import ReplayError

if TYPE_CHECKING:
    from postmortem.checkpoints.content import Saved
    from postmortem.core.model import Checkpoint
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.replay.roll.aim import Aim


_FROM_THE_START = 1000
"""A step up to which a replay may go from the recipe's initial state, where no checkpoint is early enough."""


_NEXT_FIRST = ("iter_num", "iter", "next_step", "start_step")
"""Keys of a checkpoint that hold the next step; others hold the last one done."""


def first_steps(given: int | None, saved: Saved | None, beginning: int) -> list[int]:
    """The steps that may be the first after a checkpoint, most likely first. given: by the recipe. beginning: the first
    step where there is no checkpoint. Raises ReplayError if the checkpoint does not say which."""
    if given is not None:
        return [int(given)]
    if saved is None:
        return [beginning]
    if saved.step is None:
        raise ReplayError(f"{saved.path} does not record its step: set first_step=… in the recipe's TrainStep")
    levels = [saved.content, *saved.content.values()] if isinstance(saved.content, dict) else []
    keys = {key for level in levels if isinstance(level, dict) for key in _NEXT_FIRST if key in level}
    candidates = [saved.step + 1, saved.step]
    if saved.counted or keys:
        candidates.reverse()
    return candidates


def choose_checkpoint(
    target: Path, run: Run | None, report: RunReport | None, aim: Aim, given: Path | None
) -> Path | None:
    """The checkpoint to start from: the one given, else the diagnosis' last good one, else the newest good one; None
    for the recipe's initial state, where every checkpoint of the run is of a later step.

    Every checkpoint but the one given is inspected before it is chosen. If none is finite, the newest before the step
    is chosen: the replay reports that the run started from it. Raises ReplayError if there is none at all, or if the
    one given is after the step.
    """
    known = known_checkpoints(run, report) or find_checkpoints(target)
    good = report.diagnosis.last_good_checkpoint if report is not None and report.diagnosis is not None else None
    steps = {Path(c.path).resolve(): c.step for c in known}
    at = None if good is None else _step(Path(good), steps)
    if aim.sought is not None and (aim.sought.kind == "still" or at is None or aim.start is None or at > aim.start):
        good = None  # a jump needs some calm steps before it, a training that does not learn its last state
    if given is not None:
        return _given(given, aim, good, steps)
    if run is None and len(known) == 1 and Path(known[0].path) == target:
        return target
    if not known and run is not None and from_the_start(aim):
        return None
    if not known:
        raise ReplayError(f"no checkpoint in {target}: give --checkpoint PATH")
    known = [_unless_changed(c) for c in known]
    if good is not None and (chosen := _diagnosed(good, known, aim, steps)) is not None:
        return chosen
    known = [c if c.step is not None else _with_step(c) for c in known]
    before = [c for c in known if _before(c.step, aim)]
    candidates = [c for c in before if c.step is None or aim.start is None or c.step <= aim.start] or before
    late = [c for c in candidates if c.step is not None and aim.start is not None and c.step > aim.start]
    begins_before = aim.sought is not None and aim.sought.kind == "growth" and len(late) == len(candidates)
    if not candidates or (begins_before and aim.start is not None and aim.start < _FROM_THE_START):
        return None
    return Path(_newest_finite(candidates, aim).path)


def from_the_start(aim: Aim) -> bool:
    """Whether a replay may go to the step from the recipe's initial state."""
    return aim.step is not None and aim.step <= _FROM_THE_START


def known_checkpoints(run: Run | None, report: RunReport | None) -> list[Checkpoint]:
    """The checkpoints of a run: those of its report, which were inspected, if there is one."""
    if report is not None and report.checkpoints:
        return list(report.checkpoints)
    return list(run.checkpoints) if run is not None else []


def _unless_changed(c: Checkpoint) -> Checkpoint:
    """The checkpoint, to be inspected again, as its file may have been replaced. This costs nothing if it was not."""
    return replace(c, finite=None, nonfinite=(), problem=None, looked_into=False)


def _diagnosed(good: str, known: list[Checkpoint], aim: Aim, steps: dict[Path, int | None]) -> Path | None:
    """The diagnosis' last good checkpoint, if it is before the target step and still good."""
    step = _step(Path(good), steps)
    if not _before(step, aim) or (step is not None and step == aim.step):
        return None
    found = look_for_last_good(known, _look, lambda c: c.path == good, whole=True)
    return Path(good) if found is not None else None


def _look(c: Checkpoint) -> Checkpoint:
    return looked_at(c, Looked.of(inspect(Path(c.path))))


def _with_step(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint whose name has no step (``last.pt``, ``epoch_3.pt``), with the step of its content."""
    return replace(checkpoint, step=map_files(Path(checkpoint.path)).step)


def _step(path: Path, known: dict[Path, int | None]) -> int | None:
    """The step of a checkpoint as the scan of its run found it, else from its name."""
    step = known.get(path.resolve())
    return step_of(path) if step is None else step


def _given(path: Path, aim: Aim, good: str | None, known: dict[Path, int | None]) -> Path:
    if not path.exists():
        raise ReplayError(f"no such checkpoint: {path}")
    step = _step(path, known)
    if not _before(step, aim):
        tail = f"; the last good checkpoint is {good}" if good and _step(Path(good), known) != step else ""
        where = f"not before step {aim.step}, the last step to replay"
        raise ReplayError(f"the checkpoint {path.name} is of step {step}, {where}{tail}")
    return path


def _before(step: int | None, aim: Aim) -> bool:
    """Whether a replay from a checkpoint of `step` can reach the target. Some checkpoints save the next step."""
    return step is None or aim.step is None or step <= aim.step


def _newest_finite(candidates: list[Checkpoint], aim: Aim) -> Checkpoint:
    """The newest that is finite; where none is, the newest of all.

    One of the target step itself comes last: only the log shows whether it was saved before or after that step.
    """
    earlier = [c for c in candidates if c.step != aim.step]
    for some in (earlier, candidates):
        if (found := look_for_last_good(some, _look)) is not None:
            return found
    return max(earlier or candidates, key=lambda c: (c.step is not None, c.step or 0))
