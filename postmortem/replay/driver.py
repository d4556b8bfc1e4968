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
from postmortem.core.launched import PLACEHOLDER, own_command
from postmortem.core.view import View
from postmortem.replay.advice import advice
from postmortem.replay.attempts import Attempts
from postmortem.replay.recipe.load import Recipe
from postmortem.replay.recipe.user_errors import as_one_line
from postmortem.replay.repro import write_repro
from postmortem.replay.roll.aim import aim_at
from postmortem.replay.roll.start import choose_checkpoint, known_checkpoints
from postmortem.replay.step.process_state import preserved
from postmortem.replay.verdict import ReplayVerdict, with_bad_start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.replay.attempts import Progress


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

    Raises ReplayError with the reason in one line. The state of the process is restored.
    """
    started = time.monotonic()
    found = Recipe(recipe) if recipe else Recipe.beside(target)
    if found is None:
        raise ReplayError(_two_ways(target, run, report))
    view = View(run, checkpoints=known_checkpoints(run, report)) if run is not None else None
    aim = aim_at(view, report, step)
    if config is None:
        config = run.config if run is not None else {}
    path = choose_checkpoint(target, run, report, aim, checkpoint)
    where = _device(device)
    with preserved(), found.importable(), contextlib.redirect_stdout(sys.stderr), as_one_line():
        made = Attempts(found, path, where, view, aim, dict(config), trust, progress)
        attempt = made.best_attempt()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            # the output of the step has been shown once
            culprit, judged = ReplayVerdict(made, fix=fix).of(attempt)
            if path is not None:
                culprit = with_bad_start(culprit, made.here / path, attempt)
            elif attempt.fidelity.compared and not attempt.fidelity.ok:
                attempt.fidelity = replace(attempt.fidelity, reasons=(_UNSEEDED, *attempt.fidelity.reasons))
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


_UNSEEDED = (
    "no checkpoint is of an earlier step, so the replay starts from the recipe's initial state: it has to set the seed "
    "as the training did, and build the model in the same order"
)


def _two_ways(target: Path, run: Run | None, report: RunReport | None) -> str:
    """How a run without a recipe can be replayed, with the lines to type."""
    told = report.diagnosis if report is not None else None
    good = told.last_good_checkpoint if told is not None else None
    run_path = shlex.quote(str(run.path if run is not None else target))
    own = own_command(run.path, run.launched, good) if run is not None else None
    if own is None:
        own = f"postmortem replay {run_path} -- COMMAND"
        how = ", where COMMAND is the training command as you type it"
        how += f", told to resume from {good}" if good is not None else ", told to resume from a checkpoint"
    else:
        how = f" (the command of {run.launched.source})" if run is not None and run.launched is not None else ""
        if f" {PLACEHOLDER} " in own:
            how += f", with the option by which the script resumes in place of {PLACEHOLDER}"
    return (
        f"no recipe.py in or beside {target}: rerun the training command, `{own}`{how}; or write a recipe, of which "
        f"`postmortem recipe {run_path}` makes a draft, or give --recipe FILE.py[:function] (recipe= in Python)"
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
