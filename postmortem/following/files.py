"""Which files have changed since the last look: by size, time and inode, without opening them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.core.errors import NotFoundError
from postmortem.runs.group import discover
from postmortem.runs.walk import files_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from postmortem.core.model import Problem
    from postmortem.runs.claimed import RunFiles

Mark = tuple[int, int, int]
"""Size, time of the last change in ns, inode."""
State = tuple[tuple["Path", Mark], ...]
"""The files of one run as they are now."""


class Tree:
    """The files below some roots, and the runs that they are of.

    They are grouped anew only where a file came, went or was exchanged, or where one changed that is of no run: a log
    that is appended to stays in its run.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self.runs: list[RunFiles] = []
        self.problems: list[Problem] = []
        self._marks: dict[Path, Mark] = {}
        self._parts: set[Path] = set()

    def look(self) -> None:
        """Finds what is there now. A root that has vanished has no runs."""
        marks = dict(self._marked())
        if marks == self._marks:
            return
        before, self._marks = self._marks, marks
        if marks.keys() != before.keys() or any(self._regroups(p, before[p], mark) for p, mark in marks.items()):
            self._group()

    def states(self) -> list[State]:
        """Of each run: its own files, and what of no run lies in its folder, such as checkpoints."""
        beside = defaultdict(list)
        homes = {run.path for run in self.runs}
        for path in self._marks.keys() - self._parts:
            for folder in homes.intersection(path.parents):
                beside[folder].append(path)
        of_runs = ({*(part.path for part in run.parts), *beside[run.path]} for run in self.runs)
        return [tuple((p, self._marks[p]) for p in sorted(paths) if p in self._marks) for paths in of_runs]

    def newest(self, run: RunFiles) -> float:
        """When its logs last changed, in seconds since the epoch; 0.0 if they are gone."""
        return max((self._marks[p.path][1] / 1e9 for p in run.parts if p.path in self._marks), default=0.0)

    def _regroups(self, path: Path, before: Mark, now: Mark) -> bool:
        if before == now:
            return False
        return path not in self._parts or now[2] != before[2] or now[0] < before[0]

    def _group(self) -> None:
        self.runs, self.problems = [], []
        for root in self.roots:
            try:
                found, problems = discover([root])
            except NotFoundError:
                continue
            self.runs += found
            self.problems += problems
        self._parts = {part.path for run in self.runs for part in run.parts}

    def _marked(self) -> Iterable[tuple[Path, Mark]]:
        for root in self.roots:
            for path in files_below(root, []) if root.is_dir() else [root]:
                try:
                    found = path.stat()
                except OSError:  # it has vanished since it was listed
                    continue
                yield path, (found.st_size, found.st_mtime_ns, found.st_ino)
