"""The command that investigates a failed run further, given the files that the run left."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from postmortem.core.launched import PLACEHOLDER, own_command, watched_command

if TYPE_CHECKING:
    from postmortem.core.run import Run

ANY_COMMAND = "python train.py …"
"""Placeholder for an unknown training command."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A command line. `note`: what has to be filled in, or "". `start`: from a checkpoint, from the beginning of the
    training, or from the beginning under watch, which overwrites the training's own files."""

    command: str
    note: str = ""
    start: Literal["checkpoint", "beginning", "watched"] = "checkpoint"

    @property
    def action(self) -> str:
        """As a next action of a diagnosis."""
        return f"{self.command}  ({self.note})" if self.note else self.command


def rerun(run: Run, step: int | None, checkpoint: str | None, *, startable: bool) -> Rerun:
    """How to reproduce the fault of `run`.

    `checkpoint`: a good one from before the fault, if known; `startable`: there is one, or there are candidates. A
    recipe is preferred, as it reruns the step alone. A recipe and an unknown command need a checkpoint; without one,
    the training runs under watch. Only a recipe gets `step`: a command finds it in the log.
    """
    if run.recipe and startable:
        return Rerun(_by_recipe(run, step, checkpoint))
    own = own_command(run.path, run.launched, checkpoint)
    if own is not None:
        return Rerun(own, _to_fill_in(own), "checkpoint" if startable else "beginning")
    if not startable:
        if run.script is not None:
            return Rerun(watched_command(run.script), _options(run), "watched")
        return Rerun(f"postmortem run -- {ANY_COMMAND}", f"{ANY_COMMAND} stands for your training command", "watched")
    from_where = f"from {checkpoint}" if checkpoint is not None else "from a checkpoint before the fault"
    if run.script is not None and (own := own_command(run.path, run.script, checkpoint)) is not None:
        resumed = "" if checkpoint is not None else f"let it resume {from_where}"
        return Rerun(own, "; ".join(filter(None, [_options(run), _to_fill_in(own), resumed])))
    return Rerun(
        f"postmortem replay {shlex.quote(str(run.path))} -- COMMAND",
        f"COMMAND is your training command, set to resume {from_where}",
    )


def _by_recipe(run: Run, step: int | None, checkpoint: str | None) -> str:
    command = f"postmortem replay {shlex.quote(str(run.path))}"
    if step is not None and run.step_axis != "row":  # a row number is no step
        command += f" --step {step}"
    return command if checkpoint is None else f"{command} --checkpoint {shlex.quote(checkpoint)}"


def _options(run: Run) -> str:
    assert run.script is not None
    return f"add the options that {run.script.words[-1]} was given"


def _to_fill_in(command: str) -> str:
    return f"{PLACEHOLDER} stands for the option by which it resumes" if f" {PLACEHOLDER} " in command else ""
