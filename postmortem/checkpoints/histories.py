"""The histories that `postmortem run` keeps of trainings: where they lie, and whose log goes with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

HOME = Path("postmortem-report", "history")
"""Where `postmortem run` keeps histories, below its working directory."""
_NOTE = "log.json"


def history_of(path: Path) -> tuple[Path, Path] | None:
    """The folder of the history that a file or folder belongs to, and that in which the program was started.

    None for what belongs to no history.
    """
    for folder in (path, *path.parents):
        home = folder.parent
        if home.name == HOME.name and home.parent.name == HOME.parent.name:
            return folder, home.parent.parent
    return None


def note_log(history: Path, log: Path | None) -> None:
    """Notes which log the program wrote, whose steps are those of the history; None if none was found. OSError."""
    beside = os.path.relpath(log, history) if log is not None else None
    (history / _NOTE).write_text(json.dumps({"log": beside}) + "\n")


def noted_log(history: Path) -> tuple[bool, Path | None]:
    """Whether it is noted which log goes with a history, and the log; None if there is none."""
    try:
        log = json.loads((history / _NOTE).read_text("utf-8"))["log"]
    except (OSError, ValueError, KeyError, TypeError):
        return False, None  # the program did not come to its end, or an older version wrote the history
    return True, (history / log).resolve() if isinstance(log, str) else None
