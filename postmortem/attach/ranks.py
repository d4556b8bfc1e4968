"""A replay with a recipe that says ``ranks=N``: N processes on this machine, on gloo, each with the recipe.

They are a command like any other one (`driver.rerun`), whose program (`rank_program`) runs the steps of the recipe.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.attach import driver
from postmortem.core.errors import ReplayError
from postmortem.core.view import View
from postmortem.replay import driver as one_process
from postmortem.replay.advice import advice
from postmortem.replay.recipe.ranks import RanksNeeded, ranks_saved
from postmortem.replay.roll.start import known_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from postmortem.core.culprit import ReplayResult
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run

_MOST = 64
_UNLOGGED = 1000  # steps to run without a log
_OWN_ERRORS = ("ReplayError", "UnreadableCheckpoint")


def by_recipe(
    target: Path,
    *,
    run: Run | None = None,
    report: RunReport | None = None,
    config: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    recipe: str | None = None,
    progress: Any = None,
    **options: Any,
) -> ReplayResult:
    """As `replay.driver.replay`, with as many processes as the recipe needs; `progress` is of a single one."""
    alone = {"config": config, "checkpoint": checkpoint, "recipe": recipe, "progress": progress}
    try:
        return one_process.replay(target, run=run, report=report, **alone, **options)
    except RanksNeeded as needed:
        return replay(target, needed, run=run, report=report, **options)


def replay(
    target: Path,
    needed: RanksNeeded,
    *,
    run: Run | None = None,
    report: RunReport | None = None,
    step: int | None = None,
    device: str | None = None,
    fix: bool = True,
    trust: bool = False,
    repro: Path | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> ReplayResult:
    """As `replay.driver.replay`, for a recipe that needs several ranks.

    progress: called with (steps done, logged step). Raises ReplayError with the reason in one line.
    """
    if device not in (None, "cpu"):
        raise ReplayError(f"ranks={needed.ranks}: ranks are run on the CPU (gloo), not on {device}")
    if repro is not None:
        raise ReplayError(f"ranks={needed.ranks}: --repro writes the step of one process only")
    if not 1 < needed.ranks <= _MOST:
        raise ReplayError(f"ranks={needed.ranks}: from 2 to {_MOST} ranks can be started on this machine")
    if not torch_distributed():
        raise ReplayError(f"ranks={needed.ranks}: this torch has no torch.distributed with gloo")
    view = View(run) if run is not None else None
    logged = 1 + max((s.rank for s in view.series if s.rank is not None), default=-1) if view is not None else 0
    saved = 0 if needed.checkpoint is None else ranks_saved(needed.checkpoint)
    for count, what in ((logged, "the log is"), (saved, "the checkpoint is")):
        if count > needed.ranks:
            raise ReplayError(f"ranks={needed.ranks}, but {what} of {count} ranks: set ranks={count} in the recipe")
    order = _order(needed, view, step, trust)
    best: ReplayResult | None = None
    for numbering in (0, 1):
        told: list[Any] = [[], [], 1]
        result = driver.rerun(
            target,
            _command({**order, "numbering": numbering}, needed.ranks),
            run=run,
            report=report,
            step=step,
            fix=fix,
            sandbox="none",
            offline=False,
            progress=progress,
            looked=lambda session, told=told: _read(session, told),  # type: ignore[misc]
        )
        result = _of_recipe(result, needed, told)
        best = result if best is None or result.fidelity.ok else best
        if best.fidelity.ok or not result.fidelity.reasons or told[2] < 2:
            break
    assert best is not None
    start = "" if needed.checkpoint is None else str(needed.checkpoint)
    named = best.culprit.phase != "none"
    known = View(run, checkpoints=known_checkpoints(run, report)) if run is not None else None
    return replace(best, next=advice(best.culprit, known, start) if named and best.judged else best.next)


def torch_distributed() -> bool:
    """Whether this torch can run ranks on the CPU."""
    import torch

    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def _order(needed: RanksNeeded, view: View | None, step: int | None, trust: bool) -> dict[str, Any]:
    aim, start = needed.aim, 0 if view is None else view.first_step or 0
    last = aim.step if aim.step is not None else start + _UNLOGGED
    return {
        "recipe": f"{needed.recipe.path}:{needed.recipe.function}",
        "checkpoint": None if needed.checkpoint is None else str(needed.checkpoint.absolute()),
        "step": step,
        "config": json.loads(json.dumps(needed.config, default=str)),
        "trust": trust,
        "start": start,
        "last": last + aim.beyond,  # the recipe may have no batch after that
    }


def _command(order: dict[str, Any], ranks: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", "postmortem.attach.rank_program", json.dumps(order)]


def _read(session: Path, told: list[Any]) -> None:
    path = session / "account.json"
    if path.exists():
        told[:] = json.loads(path.read_text())


def _of_recipe(result: ReplayResult, needed: RanksNeeded, told: list[Any]) -> ReplayResult:
    raised = result.raised
    if raised is not None and raised.type in _OWN_ERRORS:
        raise ReplayError(raised.message)
    return replace(
        result,
        recipe=str(needed.recipe.path),
        checkpoint="" if needed.checkpoint is None else str(needed.checkpoint),
        command=(),
        protection="",
        fitted=tuple(told[0]),
        unfitted=tuple(told[1]),
    )
