"""One run that is served: its summary, the level of the training, its history."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from postmortem._version import __version__
from postmortem.checkpoints.histories import (
    LEVELS,
    Level,
    ask_level,
    being_written,
    clear,
    history_of,
    noted_watches,
    rows_of,
    wanted_level,
)
from postmortem.core.errors import NotFoundError, PostmortemError, UsageError
from postmortem.core.model import SCHEMA_VERSION, json_value
from postmortem.core.view import View
from postmortem.following.follow import Follow
from postmortem.judging.drawing import drawing
from postmortem.reporters.json import run_value

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.config import Config
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run

_LOOK = 1.0  # seconds between two looks at the files, at least
_BUSY = 4.0  # times as long as a look took
_TAIL = 1 << 16  # bytes of a history that are read for its last row


class Refused(PostmortemError):
    """What was asked for cannot be done now; the message says why."""


@dataclass(frozen=True, slots=True)
class Last:
    """The newest value of a series."""

    tag: str
    role: str | None
    rank: int | None
    step: int | None
    value: float


class Service:
    """Answers for the run at `path`. Safe to be asked by several threads. UsageError where there are several runs."""

    def __init__(self, path: Path, config: Config | None = None) -> None:
        self._follow = Follow([path], config, also=self._seen)
        self._path = path
        self._lock = threading.Lock()
        self._last: list[Last] = []
        self._next = 0.0
        if self.report() is None:
            raise NotFoundError(f"{path}: no training log found")

    def _seen(self, run: Run, report: RunReport) -> None:
        report.drawing = drawing(run, report)
        self._last = [
            Last(s.tag, s.role, None if s.rank == -1 else int(s.rank), int(s.step[-1]), float(s.value[-1]))
            for s in View(run).series
            if len(s)
        ]

    def report(self) -> RunReport | None:
        """The run as it is now; None while its files are gone. UsageError where there are several."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next:
                self._follow.look()
                took = time.monotonic() - now
                self._next = time.monotonic() + max(_LOOK, _BUSY * took)
            reports = self._follow.reports
        if len(reports) > 1:
            names = ", ".join(r.path for r in reports[:10])
            raise UsageError(f"{self._path} holds {len(reports)} runs, serve one of them: {names}")
        return reports[0] if reports else None

    @property
    def last(self) -> list[Last]:
        """The newest value of each series."""
        return self._last

    def history(self) -> Path | None:
        """The folder of the history that a watch keeps of this run: which is joined with its log, or is the only one
        that is being written in the nearest folder above that has any."""
        parts = [part.path for files in self._follow.tree.runs for part in files.parts]
        own = (p.parent for p in parts if p.suffix == ".jsonl" and p.name.startswith("history"))
        joined = next((f for f in own if history_of(f) is not None or noted_watches(f)), None)
        if joined is not None or not parts:
            return joined
        at = self._path.resolve()
        written = next(filter(None, map(being_written, (at, *at.parents))), [])
        return written[0] if len(written) == 1 else None

    def summary(self) -> dict[str, Any]:
        """All of it as strict JSON."""
        report = self.report()
        history = self.history()
        return dict(
            json_value(
                {
                    "schema_version": SCHEMA_VERSION,
                    "postmortem": __version__,
                    "time": round(time.time(), 3),
                    "run": run_value(replace(report, drawing=None)) if report is not None else None,
                    "last": [
                        {"tag": v.tag, "role": v.role, "rank": v.rank, "step": v.step, "value": v.value}
                        for v in self._last
                    ],
                    "level": self.level(),
                    "history": _about(history) if history is not None else None,
                }
            )
        )

    def level(self) -> dict[str, Any]:
        """What was asked for, and what each rank of the training measures."""
        history = self.history()
        if history is None:
            return {"wanted": None, "watches": []}
        return {"wanted": wanted_level(history)[1], "watches": noted_watches(history)}

    def set_level(self, word: str) -> dict[str, Any]:
        """Asks the training for a level -> `level`. UsageError for another word, Refused where nobody would hear it."""
        level: Level | None = next((known for known in LEVELS if known == word), None)
        if level is None:
            raise UsageError(f"a level is {', '.join(LEVELS)}")
        history = self._kept()
        watches = noted_watches(history)
        if watches and all("ended" in watch for watch in watches):
            raise Refused("the training has ended")
        try:
            ask_level(history, level)
        except OSError as error:
            raise Refused(f"the level could not be written: {error.strerror or error}") from error
        return self.level()

    def clear(self) -> dict[str, Any]:
        """Empties the history -> what was cleared. Refused where there is none."""
        try:
            return {"cleared_bytes": clear(self._kept())}
        except OSError as error:
            raise Refused(f"the history could not be cleared: {error.strerror or error}") from error

    def _kept(self) -> Path:
        history = self.history()
        if history is None:
            raise Refused("there is no history of a watch here: `postmortem run` keeps one, and `watch(level=…)`")
        return history


def _about(history: Path) -> dict[str, Any]:
    files = []
    for path in rows_of(history):
        rows = last_rows(path, 1)
        files.append({"file": path.name, "bytes": path.stat().st_size, "last": rows[-1] if rows else None})
    return {"path": str(history), "files": files}


def last_rows(path: Path, most: int) -> list[dict[str, Any]]:
    """The last rows of a history that are whole, at most so many."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return []
    rows = []
    for line in reversed(lines if size <= _TAIL else lines[1:]):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
            except ValueError:  # cut by a full disk
                continue
            rows += [row] if isinstance(row, dict) else []
        if len(rows) == most:
            break
    return rows[::-1]


def shown(value: float) -> str:
    """A value in a table."""
    return f"{value:.6g}" if math.isfinite(value) else str(value)
