"""How a run was started, as its files say it, and the line that replays it by its own command."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = "{checkpoint}"
"""Stands for the path of a checkpoint among the words of `Launched.resume`."""
PLACEHOLDER = "RESUME_FROM"
"""Stands for the option that resumes, where the script does not show it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The command that started a run.

    `source`: what says so. `folder`: where it was started, if its script lies there and not in the working directory.
    `resume`: the words that make the script go on from a checkpoint, None if the script does not show them.
    `guessed`: no file says so; it calls the only training script that lies with the run, without options.
    """

    words: tuple[str, ...]
    source: str
    folder: str | None = None
    resume: tuple[str, ...] | None = None
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """One step of a run that `postmortem run` captured.

    `fault`: it failed, or the program ended with it; else somebody asked for it. `launched`: the command of the
    captured process, None if another one started it.
    """

    path: Path
    step: int
    fault: bool
    launched: Launched | None


def own_command(run: Path, launched: Launched | None, checkpoint: str | None) -> str | None:
    """The line to type that replays the run at `run` by the command that started it; None if that is not known.

    With a `checkpoint` the command resumes from it; where its script does not show how, by PLACEHOLDER.
    """
    if launched is None:
        return None

    def seen(path: str) -> str:
        """`path` as it is typed where the command starts."""
        return os.path.relpath(path, launched.folder) if launched.folder and not os.path.isabs(path) else path

    words = launched.words
    if checkpoint is not None:
        words = _resumed(words, launched.resume, seen(checkpoint))
    return _there(launched, f"postmortem replay {shlex.quote(seen(str(run)))} -- {shlex.join(words)}")


def resumed_command(launched: Launched | None, checkpoint: str) -> str | None:
    """The line to type that goes on with the training from `checkpoint`; None if its command is not known.

    Where its script does not show how it resumes, with PLACEHOLDER for the option.
    """
    if launched is None:
        return None
    folder = launched.folder
    path = os.path.relpath(checkpoint, folder) if folder and not os.path.isabs(checkpoint) else checkpoint
    line = shlex.join(_resumed(launched.words, launched.resume, path))
    return _in_folder(folder, line)


def watched_command(launched: Launched) -> str:
    """The line to type that runs the command again, from its start and under watch."""
    return _there(launched, f"postmortem run -- {shlex.join(launched.words)}")


def _there(launched: Launched, line: str) -> str:
    """`line`, typed in the folder in which the command starts."""
    return _in_folder(launched.folder, line)


def _in_folder(folder: str | None, line: str) -> str:
    """In a subshell: every command of a report is typed in the folder in which the report was made."""
    return f"(cd {shlex.quote(folder)} && {line})" if folder else line


def _resumed(words: tuple[str, ...], resume: tuple[str, ...] | None, checkpoint: str) -> tuple[str, ...]:
    """The command, told to resume from `checkpoint`: what it was told of another one is left out."""
    if resume is None:
        return (*words, PLACEHOLDER, checkpoint)
    own = tuple(word.replace(CHECKPOINT, checkpoint) for word in resume)
    name, joined, _ = own[0].partition("=")
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == name and not joined:
            if len(own) > 1:
                next(rest, None)  # its value
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return (*kept, *own)
