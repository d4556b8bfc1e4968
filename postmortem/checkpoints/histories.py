"""The histories that `postmortem run` keeps of trainings: where they lie, and whose log goes with them.

While a training runs, a word in a file of that folder asks for another level.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

Level = Literal["basic", "advanced", "extreme"]
LEVELS: tuple[Level, ...] = get_args(Level)

HOME = Path("postmortem-report", "history")
"""Where `postmortem run` keeps histories, below its working directory."""
CULPRIT = "culprit.json"
"""The answer of `postmortem run`, in a folder of `postmortem-report`."""
_NOTE = "log.json"
_WANTED = "level"
"""The file in the folder of a history that holds the word, `echo advanced > level`."""
_ROWS = "history*.jsonl"
_STILL = 600.0  # seconds without a row, after which a training that told no end was killed
_LONGEST = 64  # bytes of that file that are read


def history_of(path: Path) -> tuple[Path, Path] | None:
    """The folder of the history that a file or folder belongs to, and that in which the program was started.

    None for what belongs to no history.
    """
    if HOME.name not in path.parts:
        return None
    for folder in (path, *path.parents):
        home = folder.parent
        if home.name == HOME.name and home.parent.name == HOME.parent.name:
            return folder, home.parent.parent
    return None


def note_log(history: Path, log: Path | None) -> None:
    """Notes which log the program wrote, whose steps are those of the history; None if none was found. OSError."""
    note(history, log=os.path.relpath(log, history) if log is not None else None)


def noted_log(history: Path) -> tuple[bool, Path | None]:
    """Whether it is noted which log goes with a history, and the log; None if there is none."""
    noted = noted_of(history)
    log = noted.get("log")
    # without the word the program did not come to its end, or an older version wrote the history
    return "log" in noted, (history / log).resolve() if isinstance(log, str) else None


def note(history: Path, **facts: Any) -> None:
    """Notes facts of a training that has ended, beside those that are noted already. OSError."""
    new = history / f".{_NOTE}.{os.getpid()}"
    new.write_text(json.dumps({**noted_of(history), **facts}) + "\n")
    new.replace(history / _NOTE)


def noted_of(history: Path) -> dict[str, Any]:
    """The facts that are noted of a training; {} while it runs, and where they cannot be read."""
    try:
        noted = json.loads((history / _NOTE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return noted if isinstance(noted, dict) else {}


def note_culprit(history: Path, saved: Path) -> None:
    """Notes where the answer lies that `postmortem run` saved of a training; nothing where no history is kept."""
    if history.is_dir():
        with suppress(OSError):  # a scan then shows the failure without the culprit
            note(history, culprit=os.path.relpath(saved, history))


def ended_as(history: Path) -> dict[str, Any]:
    """How the program of a history ended, as `postmortem run` noted it: `code`, `time`, and, if the fault was in this
    training, `fault` and `culprit`, the path of the saved answer. {} while it runs, and of an older version."""
    found = history_of(history)
    session = found[0] if found is not None else history
    noted = noted_of(session)
    fault = noted.get("fault")
    pids = [watch.get("pid") for watch in noted_watches(history)]
    own = isinstance(fault, dict) and (fault.get("pid") in pids or not pids)
    saved = noted.get("culprit") if own or (session == history and fault is None) else None
    facts = {"code": noted.get("code"), "time": noted.get("time"), "fault": fault if own else None}
    return {**facts, "culprit": session / saved if isinstance(saved, str) else None} if "code" in noted else {}


def rows_of(history: Path) -> list[Path]:
    """The files of a history: one for each rank."""
    return sorted(p for p in history.glob(_ROWS) if p.is_file() and not p.is_symlink())


def clear(history: Path) -> int:
    """Empties the files of a history -> bytes that were cleared. A training that writes to it goes on. OSError."""
    cleared = 0
    for path in rows_of(history):
        cleared += path.stat().st_size
        os.truncate(path, 0)
    return cleared


def ask_level(history: Path, level: Level) -> None:
    """Asks the training to measure at this level; it does so within a second and a step. OSError."""
    new = history / f".{_WANTED}.{os.getpid()}"
    new.write_text(f"{level}\n")
    new.replace(history / _WANTED)


def wanted_level(history: Path) -> tuple[int, Level | None]:
    """(when somebody asked for a level, in ns; the level). The level is None for another word, 0: nobody asked."""
    path = history / _WANTED
    try:
        changed = path.stat().st_mtime_ns
        with path.open("rb") as file:
            word = file.read(_LONGEST).decode("ascii", "replace").strip()
    except OSError:
        return 0, None
    return changed, next((level for level in LEVELS if level == word), None)


def is_level(path: Path) -> bool:
    """Whether a file is the word that asks for a level."""
    return path.name == _WANTED and history_of(path.parent) is not None


def being_written(start: Path) -> list[Path]:
    """The histories of trainings that were started in this folder and are not known to have ended."""
    home = start / HOME
    folders = [*home.glob("*"), *home.glob("*/training-*")]
    found = []
    for folder in folders:
        with suppress(OSError):
            newest = max((path.stat().st_mtime for path in rows_of(folder)), default=0.0)
            watches = noted_watches(folder)
            if time.time() - newest < _STILL and watches and not all("ended" in w for w in watches):
                found.append(folder)
    return found


def note_watch(history: Path, rank: int | None, **facts: Any) -> None:
    """What the training says of itself: its level, its process, whether it has ended. OSError."""
    (history / _watch_file(rank)).write_text(json.dumps({"rank": rank, **facts}) + "\n")


def noted_watches(history: Path) -> list[dict[str, Any]]:
    """What the ranks of the training say of themselves."""
    found = []
    for path in sorted(history.glob(_watch_file("*"))):
        with suppress(OSError, ValueError):  # being written just now
            facts = json.loads(path.read_text("utf-8"))
            found += [facts] if isinstance(facts, dict) else []
    return found


def _watch_file(rank: int | str | None) -> str:
    if rank == "*":
        return "watch*.json"
    return "watch.json" if rank is None else f"watch-rank{rank}.json"
