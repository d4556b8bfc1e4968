"""Captures of `postmortem run`, as far as they can be known without torch. A capture is no checkpoint of the program:
only `postmortem replay CAPTURE -- COMMAND` can use it.

    NAME/capture.json   what it holds, and where it comes from
    NAME/step.json      the logged step it is of, once the program has ended: ``{"step": …, "runs": {path: step}}``
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.core.launched import Captured, Launched

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = "capture.json"
HOME = Path("postmortem-report", "captures")
"""Where `postmortem run` keeps captures, below its working directory."""
_STEP = "step.json"
_MOST_BYTES = 16 << 20
_ABOVE = 3  # folders above a run in which the program may have been started


def is_capture(path: Path) -> bool:
    """Whether a folder is a capture."""
    return (path / HEAD).is_file()


def step_of(capture: Path) -> int | None:
    """The step of the log that the capture is of, where it was known at the end of the program."""
    return _number(_read(capture / _STEP).get("step"))


def note_step(capture: Path, step: int | None, runs: Mapping[Path, int]) -> None:
    """Notes of which step of the log a capture is, and of which step in each of the folders `runs` that log it."""
    beside = {os.path.relpath(run, capture): number for run, number in runs.items()}
    (capture / _STEP).write_text(json.dumps({"step": step, "runs": beside}) + "\n")


def homes_of(run: Path) -> list[Path]:
    """The folders in which captures of the run with its log at `run` may lie."""
    return [Path(home) for home in _homes(run)]


def _homes(run: Path) -> list[str]:
    above = [str(run.absolute())]
    while len(above) <= _ABOVE and above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    return [os.path.join(folder, HOME) for folder in above]


def captures_of(run: Path, *histories: Path) -> list[Captured]:
    """The captures that were noted to be of the run with its log at `run`, or of its histories, the newest first."""
    homes = [home for home in _homes(run) if os.path.isdir(home)]
    heads = [head for home in homes for head in Path(home).glob(f"[!.]*/{HEAD}")]
    if not heads:
        return []  # most runs have none, and links take long to resolve
    own = [run.resolve(), *(history.resolve() for history in histories)]
    found = (_captured(head.parent, own) for head in sorted(heads, key=lambda head: head.parent.name, reverse=True))
    return [captured for captured in found if captured is not None]


def _captured(capture: Path, runs: list[Path]) -> Captured | None:
    noted = _read(capture / _STEP).get("runs")
    steps = {(capture / path).resolve(): step for path, step in noted.items()} if isinstance(noted, dict) else {}
    step = next((step for run in runs if (step := _number(steps.get(run))) is not None), None)
    head = _read(capture / HEAD)
    if step is None:
        return None
    here = Path.cwd()
    path = capture.relative_to(here) if capture.is_relative_to(here) else capture
    return Captured(path, step, fault=head.get("kind") != "requested", launched=_launched(head, capture / HEAD))


def _launched(head: Mapping[str, Any], source: Path) -> Launched | None:
    """The command of the process that was captured; that of one of several ranks starts no training."""
    words, folder = head.get("command"), head.get("cwd")
    if head.get("rank") is not None or not isinstance(words, list) or not words or not isinstance(folder, str):
        return None
    if not all(isinstance(word, str) and word.isprintable() for word in [*words, folder]):
        return None
    return Launched(tuple(words), str(source), folder=folder if Path(folder) != Path.cwd() else None)


def _read(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; {} where there is none: then nothing is known."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
