"""Looks again and again at runs that grow; only those with changed files are read again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postmortem import api
from postmortem.core.config import Config
from postmortem.core.report import tell_apart
from postmortem.following.files import Tree
from postmortem.following.news import OPEN, News, first_news, news, of_run, told_of
from postmortem.runs.each import read
from postmortem.runs.target import shared_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from postmortem.core.model import Problem
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.following.files import State
    from postmortem.following.news import Told
    from postmortem.runs.claimed import RunFiles

SILENCE = 300.0
"""Seconds without a write after which a run is told as silent."""
_PAUSE = 1.0  # seconds; shorter pauses are not worth telling
_MISSED = 2  # looks in a row without a run, after which it is gone: a file may be exchanged for a new one


@dataclass(slots=True)
class _Followed:
    """One run (several, where programs wrote into one file). grown: when its files last changed; looked: when that was
    seen to be the last change; pause: the longest time without a write, as far as looks show it, after which it went
    on."""

    state: State
    reports: list[RunReport]
    grown: float
    looked: float
    pause: float = 0.0
    live: bool = True
    judged: float = 0.0
    silent: bool = False


class Follow:
    """What `watch-logs` and `serve` know of the runs below `roots`.

    silence: seconds without a write after which a run whose log names no end counts as silent. also: gets each run
    that was read, with its report. `look` has to be called again and again.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        config: Config | None = None,
        *,
        silence: float = SILENCE,
        also: Callable[[Run, RunReport], None] | None = None,
    ) -> None:
        self.tree = Tree(roots)
        self._also = also
        self._config, self._silence = config or Config(), silence
        self._runs: dict[tuple[str, str], _Followed] = {}
        self._told: dict[tuple[str, str], Told] = {}
        self._missed: dict[tuple[str, str], int] = {}

    @property
    def reports(self) -> list[RunReport]:
        """The newest of all runs."""
        return [report for run in self._runs.values() for report in run.reports]

    @property
    def problems(self) -> list[Problem]:
        """What could not be inspected."""
        return self.tree.problems

    def look(self) -> list[News]:
        """Reads what has changed -> what is new. The first time every run is new."""
        now = time.time()
        self.tree.look()
        shared = shared_folders(self.tree.runs)
        found: list[News] = []
        seen = set()
        for files, state in zip(self.tree.runs, self.tree.states(), strict=True):
            key = str(files.path), files.name
            seen.add(key)
            found += self._one(key, files, state, shared, now)
        tell_apart(self.reports)
        return [*found, *self._gone(seen)]

    def _one(
        self, key: tuple[str, str], files: RunFiles, state: State, shared: frozenset[Path], now: float
    ) -> Iterator[News]:
        run = self._runs.get(key)
        changed = run is None or run.state != state
        if run is None:
            grown = self.tree.newest(files)
            run = self._runs[key] = _Followed(state, [], grown, now, live=now - grown < self._silence)
        elif changed:
            grown = self.tree.newest(files) or now
            if grown > run.grown:  # between two looks it may have grown many times
                run.pause = max(run.pause, run.looked - run.grown)
            run.state, run.grown = state, max(run.grown, grown)
        run.looked = now
        was_live, run.live = run.live, now - run.grown < self._silence
        # one that is "running" by the times in its log may have ended by now
        waits = not run.live and now - run.judged > self._silence and any(r.ended == "running" for r in run.reports)
        if not (changed or was_live != run.live or waits):
            return
        run.reports = [self._judged(r, live=run.live) for r in read(files, self._config.roles, self.tree.roots, shared)]
        run.judged = now
        for report in run.reports:
            yield from self._news(report, run, now)

    def _judged(self, run: Run, *, live: bool) -> RunReport:
        """A log that grows is that of a run that runs, whatever its last line is."""
        if live and run.ended in ("unknown", "cut"):
            run = replace(run, ended="running")
        report = api.judge(run, self._config)
        if self._also is not None:
            self._also(run, report)
        report.run = None
        return report

    def _news(self, report: RunReport, run: _Followed, now: float) -> Iterator[News]:
        key = report.path, report.name
        before = self._told.get(key)
        self._told[key] = told_of(report)
        if before is None:
            run.silent = not run.live
            yield first_news(report, live=run.live)
            return
        yield from news(before, report, live=run.live)
        if run.live == (not run.silent) or report.ended not in OPEN or (not run.live and report.ended == "running"):
            return
        run.silent = not run.live
        if run.live:
            yield of_run(report, "goes-on", f"its log grows again, to {report.unit} {report.last_step}")
            return
        silence = now - run.grown
        known = f"; the longest pause seen before was {_span(run.pause)}" if run.pause >= _PAUSE else ""
        message = f"nothing was written for {_span(silence)}{known}: it hangs, waits, or ended without a word"
        yield of_run(report, "silent", message, "warning", seconds=round(silence, 1))

    def _gone(self, seen: set[tuple[str, str]]) -> Iterator[News]:
        for key in [k for k in self._runs if k not in seen]:
            self._missed[key] = self._missed.get(key, 0) + 1
            if self._missed[key] < _MISSED:
                continue
            for report in self._runs.pop(key).reports:
                self._told.pop((report.path, report.name), None)
                yield News(kind="gone", run=report.name, path=report.path, message="its files are gone")
        self._missed = {k: n for k, n in self._missed.items() if k in self._runs and k not in seen}


def _span(seconds: float) -> str:
    """Whole seconds or minutes, never rounded up."""
    return f"{int(seconds)} s" if seconds < 120 else f"{int(seconds // 60)} min"
