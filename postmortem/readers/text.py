"""Text logs: what a training printed to its terminal, a Slurm ``.out``, a logger's file.

Each row is understood once by a dialect or by the general miner; rows that differ only in their numbers share
that understanding (`_shapes`). Steps are settled at the end, over the whole file (`_steps`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.reading import Reading
from postmortem.readers import reader
from postmortem.readers._events import find_events
from postmortem.readers._lines import Lines, looks_like_text, text_of
from postmortem.readers._miner import LONGEST_ROW, mine
from postmortem.readers._prefix import labelled, peel
from postmortem.readers._steps import NO_STEP, Track, resolve
from postmortem.readers._tables import ColumnTable
from postmortem.readers.dialects import DIALECTS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from postmortem.core.model import Event
    from postmortem.readers._lines import Block
    from postmortem.readers._prefix import Prefix
    from postmortem.readers._steps import Resolved
    from postmortem.readers.dialects import Dialect, Record

_ENDINGS = {".out", ".log", ".err", ".txt", ""}
_JOB = re.compile(r"(?:SLURM_JOB_?ID|slurm job id|Job ID|job_id)\s*[=:]\s*(\d{3,12})", re.IGNORECASE)
_JOB_IN_NAME = re.compile(r"(?<![\d.])(\d{4,12})(?:_\d+)?(?=\.(?:out|err|log|txt)$)|(?:slurm|job)[-_.]?(\d{3,12})", re.IGNORECASE)
_YEAR = re.compile(rb"(?<!\d)(20\d\d)[-/]\d\d[-/]\d\d")
_GLUED = re.compile(
    r"(?<=[\d.\])])(?=(?:step|iter|iteration|epoch|Step|Iter|Iteration|Epoch)\b[ :=#\[(]{0,3}\d|\{'[a-z])|(?<=\d)(?=\[(?:rank|default)\d)"
)
_NUMBER_WORDS = re.compile(r"\d|\bnan\b|\binf", re.IGNORECASE)
_QUIET_LEVELS = {"WARNING", "ERROR", "CRITICAL"}


@reader
class TextReader:
    """Any readable text that ends in .out, .log, .err or .txt, or has no ending."""

    kind: ClassVar[str] = "text"
    priority: ClassVar[int] = 900

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        return path.suffix.lower() in _ENDINGS and looks_like_text(head)

    @staticmethod
    def read(path: Path) -> Reading:
        return read_text(path)


def read_text(path: Path, dialects: Iterable[type[Dialect]] | None = None) -> Reading:
    """Reads a text log with these dialects (default: all that are registered) and the general miner."""
    return _File(path, DIALECTS if dialects is None else dialects).read()


class _File:
    """One log while it is read."""

    def __init__(self, path: Path, dialects: Iterable[type[Dialect]]) -> None:
        self.path = path
        self.track = Track()
        self.dialects: list[Dialect] = [*(d() for d in dialects), ColumnTable()]
        self.names = [*(d.name for d in self.dialects), "general miner"]
        self.explained: Counter[str] = Counter()
        self.unexplained = 0
        self.labels = False
        self.year: int | None = None
        self.first_time = np.nan
        self.last_time = np.nan
        self.job: str | None = None
        self.cut_rows = 0
        self.active = list(enumerate(self.dialects))

    def read(self) -> Reading:
        lines = Lines(self.path)
        found = find_events(self._lines(lines), path=str(self.path), unterminated=lines.ends_open())
        resolved = resolve(self.track)
        reading = Reading(
            source="text",
            path=str(self.path),
            points=resolved.points,
            events=_with_steps(found.events, resolved),
            problems=lines.problems,
            skipped=resolved.skipped,
            notes=[*lines.notes, *self._notes(), *resolved.notes],
            ended=found.ended,
            started=None if np.isnan(self.first_time) else float(self.first_time),
            stopped=None if np.isnan(self.last_time) else float(self.last_time),
            step_axis=resolved.axis,
            facts=dict(found.facts),
        )
        if self.cut_rows:
            reading.problems.append(
                Problem(
                    path=str(self.path),
                    what=f"{self.cut_rows} lines are longer than {LONGEST_ROW} characters",
                    kept="the numbers in their first part",
                    lost="the rest of them",
                )
            )
        if self.unexplained:
            reading.skipped["lines with numbers that nothing explained"] = self.unexplained
        job = self.job or next((g for m in [_JOB_IN_NAME.search(self.path.name)] if m for g in m.groups() if g), None)
        if job:
            reading.facts.setdefault("job_id", job)
        return reading

    def _notes(self) -> list[str]:
        total = sum(self.explained.values())
        if not total:
            return []
        parts = ", ".join(f"{name} {count}" for name, count in self.explained.most_common())
        return [f"lines explained: {parts}; with numbers but not explained: {self.unexplained}"]

    def _lines(self, lines: Lines) -> Iterator[tuple[int, str]]:
        """Reads the numbers of each block and hands its lines on to the search for events."""
        for i, block in enumerate(lines):
            if i == 0:
                self._look(block)
            yield from self._block(block)

    def _look(self, block: Block) -> None:
        head = block.data[:262_144]
        sample = [text_of(line) for line in head.split(b"\n", 400)[:400]]
        self.labels = labelled(sample)
        text = "\n".join(sample)
        self.active = [(i, d) for i, d in enumerate(self.dialects) if d.sniff(text)]
        found = _YEAR.search(head)
        self.year = int(found[1]) if found else datetime.fromtimestamp(self.path.stat().st_mtime, UTC).year
        job = _JOB.search(text_of(head[:65_536]))
        self.job = job[1] if job else None

    def _block(self, block: Block) -> Iterator[tuple[int, str]]:
        for i, line in enumerate(block.data.split(b"\n")):
            if not line or line.isspace():
                continue
            number = block.first_line + i
            for row in line.split(b"\r"):
                if row:
                    self._row(row, number)
            yield number, text_of(line)
        self.track.flush()

    def _row(self, row: bytes, line: int) -> None:
        if len(row) > LONGEST_ROW:
            self.cut_rows += 1
            row = row[:LONGEST_ROW]
        text = text_of(row)
        for part in _GLUED.split(text) if _GLUED.search(text) else (text,):
            self._part(part, line)

    def _part(self, part: str, line: int) -> None:
        text, prefix = peel(part, labels=self.labels, year=self.year)
        if prefix.wall_time is not None:
            if np.isnan(self.first_time):
                self.first_time = prefix.wall_time
            self.last_time = prefix.wall_time
        record, dialect = self._understand(text, prefix, line)
        if record is None:
            if dialect < 0 and _NUMBER_WORDS.search(text):
                self.unexplained += 1
            return
        self.explained[self.names[dialect]] += 1
        rank = _rank(prefix, record)
        wall = prefix.wall_time if prefix.wall_time is not None else record.wall_time
        self.track.add(record, line, rank, np.nan if wall is None else wall, dialect)

    def _understand(self, text: str, prefix: Prefix, line: int) -> tuple[Record | None, int]:
        """What a row says, and by which dialect; None with a dialect: a row of its format that says nothing."""
        if not text or text.isspace():
            return None, 0
        row = Row(text, prefix, line, -1 if prefix.best_rank is None else prefix.best_rank)
        for i, dialect in self.active:
            if dialect.needles and not any(n in text for n in dialect.needles):
                continue
            record = dialect.parse(row)
            if record is not None:
                return (record, i) if _says_something(record) else (None, i)
        if prefix.level in _QUIET_LEVELS:
            return None, -1
        record = mine(text)
        return record, len(self.dialects) if record is not None else -1


def _says_something(record: Record) -> bool:
    return bool(record.values) or bool(record.absent) or record.step is not None or record.n is not None or record.epoch is not None


def _rank(prefix: Prefix, record: Record) -> int:
    """The global rank; torchrun's local rank only where nothing better is known."""
    for rank in (prefix.rank, prefix.task, record.rank, prefix.local_rank):
        if rank is not None:
            return rank
    return -1


def _with_steps(events: list[Event], resolved: Resolved) -> list[Event]:
    """Each event with the last step that its rank, or else anyone, had printed before it."""
    if not len(resolved.line):
        return events
    known = np.flatnonzero(resolved.step != NO_STEP)
    lines, steps, ranks = resolved.line[known], resolved.step[known], resolved.rank[known]
    dated = []
    for event in events:
        end = int(np.searchsorted(lines, event.line or 0, side="right")) if event.line is not None else len(lines)
        step = None
        if end:
            own = np.flatnonzero(ranks[:end] == (-2 if event.rank is None else event.rank))
            step = int(steps[own[-1] if len(own) else end - 1])
        dated.append(replace(event, step=step) if step is not None and event.step is None else event)
    return dated
