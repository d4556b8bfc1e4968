"""The replay of a failed run, from its last good checkpoint to the culprit.

`replay` implements the command: it rebuilds the step with the user's recipe, loads the checkpoint, rolls forward to the
failing step, compares every loss with the log, runs that step again and passes it to `localize`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.culprit import ReplayResult
from postmortem.core.errors import ReplayError
from postmortem.core.view import View
from postmortem.diagnoses.shared.rerun import rerun
from postmortem.replay.advice import advice
from postmortem.replay.attempts import Attempts
from postmortem.replay.recipe.load import Recipe
from postmortem.replay.recipe.ranks import RanksNeeded, ranks_written
from postmortem.replay.recipe.user_errors import as_one_line
from postmortem.replay.repro import write_repro
from postmortem.replay.roll.aim import aim_at
from postmortem.replay.roll.start import choose_checkpoint, from_the_start, known_checkpoints
from postmortem.replay.step.process_state import preserved
from postmortem.replay.verdict import ReplayVerdict, with_bad_start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from postmortem.core.culprit import Culprit
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.replay.attempts import Attempt, Progress
    from postmortem.replay.roll.aim import Aim


def replay(
    target: Path,
    *,
    run: Run | None = None,
    report: RunReport | None = None,
    config: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    step: int | None = None,
    checkpoint: Path | None = None,
    device: str | None = None,
    fix: bool = True,
    trust: bool = False,
    progress: Progress | None = None,
    repro: Path | None = None,
) -> ReplayResult:
    """Reruns the step at which `run` failed and names the culprit.

    target: a run folder, a checkpoint or a file of a run. report: the result of a scan of the run. config: what the
    recipe gets as ``ctx.config``, by default the run's. step, checkpoint: in place of those of the report. fix: try
    repairs on the step at fault. trust: unpickle whatever a checkpoint holds. progress: called with (steps done, steps
    in all, last result). repro: folder for a stand-alone script that shows the fault.

    Raises ReplayError with the reason in one line (RanksNeeded: several ranks). The process is restored.
    """
    started = time.monotonic()
    view = View(run, checkpoints=known_checkpoints(run, report)) if run is not None else None
    aim = aim_at(view, report, step)
    found = Recipe(recipe) if recipe else Recipe.beside(target)
    if found is None:
        raise ReplayError(_without_recipe(target, run, report, aim))
    config = config if config is not None else run.config if run is not None else {}
    path = choose_checkpoint(target, run, report, aim, checkpoint)
    if (ranks := ranks_written(found)) > 1:
        raise RanksNeeded(found, ranks, path, aim, dict(config))
    where = _device(device)
    with preserved(), found.importable(), contextlib.redirect_stdout(sys.stderr), as_one_line():
        made = Attempts(found, path, where, view, aim, dict(config), trust, progress)
        attempt = made.best_attempt()
        if checkpoint is None and _lost(attempt, aim):
            path = made.path = choose_checkpoint(target, run, report, replace(aim, sought=None), None)
            attempt = made.best_attempt()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            # the output of the step has been shown once
            culprit, judged = ReplayVerdict(made, fix=fix).of(attempt)
            culprit = _with_start(culprit, None if path is None else made.here / path, attempt)
            notes = [write_repro(repro, attempt.runner, attempt.roll, culprit)] if repro is not None else []
    return ReplayResult(
        target=str(target),
        recipe=str(found.path),
        checkpoint="" if path is None else str(path),
        step=culprit.step if culprit.step is not None or aim.step is None else min(aim.step, attempt.roll.last),
        fidelity=attempt.fidelity,
        culprit=culprit,
        fitted=tuple(attempt.account.fitted),
        unfitted=tuple(attempt.account.unfitted),
        notes=tuple(notes),
        next=advice(culprit, view, "" if path is None else str(path)) if judged else (),
        judged=judged,
        seconds=time.monotonic() - started,
    )


def _with_start(culprit: Culprit, start: Path | None, attempt: Attempt) -> Culprit:
    """The culprit, with a note if what the replay started from explains that it does not follow the log."""
    if start is not None:
        return with_bad_start(culprit, start, attempt)
    if attempt.fidelity.compared and not attempt.fidelity.ok:
        attempt.fidelity = replace(attempt.fidelity, reasons=(_UNSEEDED, *attempt.fidelity.reasons))
        return replace(culprit, fidelity=attempt.fidelity)
    return culprit


def _lost(attempt: Attempt, aim: Aim) -> bool:
    """True if a replay that began some calm steps earlier does not follow the log: what the run was resumed with may
    be known only from the checkpoint that it was resumed from."""
    return aim.sought is not None and bool(attempt.fidelity.compared) and not attempt.fidelity.ok


_UNSEEDED = (
    "no checkpoint is of an earlier step, so the replay starts from the recipe's initial state: it has to set the seed "
    "as the training did, and build the model in the same order"
)


def _without_recipe(target: Path, run: Run | None, report: RunReport | None, aim: Aim) -> str:
    """What can be typed for a run that no recipe repeats: its own command, or a draft of a recipe."""
    told = report.diagnosis if report is not None else None
    good = told.last_good_checkpoint if told is not None else None
    known = known_checkpoints(run, report) if run is not None else []
    startable = good is not None or any(c.finite is not False for c in known)
    missing = f"no recipe.py in or beside {target}"
    path = shlex.quote(str(run.path if run is not None else target))
    if report is not None and report.verdict == "healthy" and aim.asked is None and aim.sought is None:
        return _without_fault(missing, path)
    if run is None:
        ways = f"rerun the training command, `postmortem replay {path} -- COMMAND`"
        startable = True
    else:
        again = rerun(replace(run, recipe=False), None, good, startable=startable)
        does = {
            "checkpoint": "reruns the training command up to the failing step",
            "beginning": "runs the training command again from its start",
            "watched": "trains again under watch, and names the culprit when it fails",
        }[again.start]
        source = f", the command of {run.launched.source}" if run.launched is not None else ""
        note = f" ({again.note})" if again.note else ""
        ways = f"`{again.command}` {does}{source}{note}"
        missing += "" if startable else ", and no checkpoint to replay from"
    draft = f"`postmortem recipe {path}"
    if startable:
        recipe = f"a recipe, of which {draft}` makes a draft"
    elif from_the_start(aim):
        recipe = f"a recipe of the initial state, of which {draft}` makes a draft"
    else:
        recipe = f"a recipe for a checkpoint of it, of which {draft} --checkpoint FILE` makes a draft"
    return f"{missing}: {ways}; or write {recipe}, or give --recipe FILE.py[:function] (recipe= in Python)"


def _without_fault(missing: str, path: str) -> str:
    return (
        f"the log of {path} shows no fault, so that no step is known to fail, and there is {missing}: "
        f"`postmortem replay {path} --step N -- COMMAND` reruns the step N of your choice (COMMAND is your training "
        "command, set to resume from a checkpoint before that step); `postmortem check -- COMMAND` looks for faults "
        "that a log does not show"
    )


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise ReplayError(f"no such device: {name!r} (use cpu, cuda, cuda:1, …)") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ReplayError(f"no such device: {name!r} ({torch.cuda.device_count()} CUDA devices are available)")
    return found
