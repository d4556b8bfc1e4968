"""One text log while it is read: from its bytes, block by block, to points, events and notes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.model import Problem
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip
from postmortem.readers.text.bulk import Bulk
from postmortem.readers.text.bulk.collect import Ordered
from postmortem.readers.text.bulk.rows import Rows
from postmortem.readers.text.failures import find_events
from postmortem.readers.text.lines.blocks import Lines, text_of
from postmortem.readers.text.lines.own_texts import OwnTexts
from postmortem.readers.text.lines.prefixes import labelled, peel
from postmortem.readers.text.records.settings import settings_in
from postmortem.readers.text.records.tokens import LONGEST_ROW
from postmortem.readers.text.row_parser import RowParser
from postmortem.readers.text.steps.resolve import resolve
from postmortem.readers.text.steps.row_store import NO_STEP, RowStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from postmortem.core.model import Event
    from postmortem.readers.text.dialects import Dialect
    from postmortem.readers.text.lines.blocks import Block
    from postmortem.readers.text.steps.announced_length import Announcements
    from postmortem.readers.text.steps.resolve import Resolved

_JOB = re.compile(r"(?:SLURM_JOB_?ID|slurm job id|Job ID|job_id)\s*[=:]\s*(\d{3,12})", re.IGNORECASE)
_JOB_IN_NAME = re.compile(
    r"(?<![\d.])(\d{4,12})(?:_\d+)?(?=\.(?:out|err|log|txt)$)|(?:slurm|job)[-_.]?(\d{3,12})", re.IGNORECASE
)
_YEAR = re.compile(rb"(?<!\d)(20\d\d)[-/]\d\d[-/]\d\d")
_CLOCK = re.compile(rb"\d\d:\d\d")
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
_MOST_SHAPES = 20_000
_HEAD, _MOST_LINES = 65_536, 600
"""Bytes and lines from the start of a log in which settings are looked for."""
_STEPS_APART = 5
"""Repeated steps, and steps beyond them, that show a restart: ranks of one training are hardly a step apart."""
_KEPT = 31 << 20
"""Bytes; just below the largest value to which glibc raises M_MMAP_THRESHOLD when memory is freed, see mallopt(3)."""
NEAR = 32_768
"""Bytes after a line that may matter in which the search for events sees every line."""


class LogFile:
    """One log while it is read."""

    def __init__(self, path: Path, dialects: Iterable[type[Dialect]], fast: bool = True) -> None:
        self.path = path
        self.store = RowStore()
        self.parser = RowParser(self.store, dialects)
        self.bulk = Bulk(self.parser, fast)
        self.timeless: set[bytes] = set()
        """Rows without a time, with all digits replaced by 0."""
        self.first_time = np.nan
        self.last_time = np.nan
        self.job: str | None = None
        self.own_texts = OwnTexts()
        self.own = 0
        """Rows of which postmortem itself wrote the end."""
        self.open = 0
        """Up to which byte of the next block the search for events sees every line, see `NEAR`."""
        self.code_lines: list[int] = []
        self.head: list[str] = []
        """The first lines, without the prefixes of loggers, which may be settings."""
        self.resolved: Resolved | None = None
        self.last_fall: int | None = None

    def read(self) -> Reading:
        np.empty(
            _KEPT, np.uint8
        )  # freed at once: from here on glibc keeps what is freed for the next block, as fresh pages cost most
        lines = Lines(self.path)
        found = find_events(
            self._lines(lines),
            path=str(self.path),
            unterminated=lines.ends_open(),
            went_back=self._went_back,
            code_lines=self.code_lines,
        )
        resolved = self._resolve(found.announced)
        reading = Reading(
            source="text",
            path=str(self.path),
            points=resolved.points,
            events=_with_steps(found.events, resolved),
            problems=lines.problems,
            skipped=resolved.skipped,
            notes=[*lines.notes, *self._notes(), *resolved.notes],
            ended="completed" if found.ended is None and _is_done(resolved.plan) else found.ended,
            started=None if np.isnan(self.first_time) else float(self.first_time),
            stopped=None if np.isnan(self.last_time) else float(self.last_time),
            step_axis=resolved.axis,
            config=settings_in(self.head[: _before_first(resolved)]),
            facts=found.facts
            | ({"plan": resolved.plan} if resolved.plan else {})
            | ({"epoch_ends": resolved.ends} if resolved.ends else {}),
        )
        if cut := len(self.parser.cut_rows):
            what, these = ("1 line is", "this line") if cut == 1 else (f"{cut} lines are", "these lines")
            reading.problems.append(
                Problem(
                    path=str(self.path),
                    what=f"{what} longer than {LONGEST_ROW} characters",
                    kept="the numbers in the first part",
                    lost=f"the rest of {these}",
                    kind="limit",
                )
            )
        reading.problems += [
            Problem(path=str(self.path), line=line or None, what=what, lost="what only this dialect reads from here on")
            for what, line in self.parser.faults
        ]
        if self.parser.unexplained:
            reading.skipped[Skip.UNEXPLAINED] = self.parser.unexplained
        if self.own:
            reading.skipped[Skip.OWN] = self.own
        job = self.job or next((g for m in [_JOB_IN_NAME.search(self.path.name)] if m for g in m.groups() if g), None)
        if job:
            reading.facts.setdefault("job_id", job)
        return reading

    def _resolve(self, announced: Announcements) -> Resolved:
        """Settle the steps; all rows must have been read."""
        if self.resolved is None:
            self.store.code_lines = self.code_lines
            self.resolved = resolve(self.store, announced)
        return self.resolved

    def _went_back(self, line: int, announced: Announcements) -> bool:
        resolved = self._resolve(announced)
        if self.last_fall is None:
            self.last_fall = _last_fall(resolved) if resolved.axis == "step" else -1
        return line < self.last_fall and _went_back(resolved, line)

    def _notes(self) -> list[str]:
        explained = self.parser.explained
        if not explained:
            return []
        parts = ", ".join(f"{name} {count}" for name, count in sorted(explained.items(), key=lambda e: (-e[1], e[0])))
        if scanned := self.bulk.n_scanned:
            parts += (
                f", simple pattern {scanned} (no other line has the same words: only names with numbers were searched)"
            )
        return [f"lines recognised: {parts}; with numbers but not recognised: {self.parser.unexplained}"]

    def _lines(self, lines: Lines) -> Iterator[tuple[int, str]]:
        """Read the numbers of each block and hand its lines on to the search for events."""
        size = max(self.path.stat().st_size, 1)
        for i, block in enumerate(lines):
            self.store.share = min(1.0, (block.offset + block.size) / size)
            if i == 0:
                self._look(block)
            yield from self._block(block)

    def _look(self, block: Block) -> None:
        head = block.data[: min(block.size, 262_144)]
        found = _YEAR.search(head)
        self.parser.look(head, int(found[1]) if found else datetime.fromtimestamp(self.path.stat().st_mtime, UTC).year)
        first = text_of(head[:_HEAD])
        lines = first.splitlines()[:_MOST_LINES]
        labels = labelled(lines)
        self.head = [peel(line, labels=labels)[0] for line in lines]
        job = _JOB.search(first)
        self.job = job[1] if job else None

    def _block(self, block: Block) -> Iterator[tuple[int, str]]:
        rows = Rows(block, self.own_texts)
        out = Ordered(rows.line)
        self.own += rows.own
        news = self.bulk.read(rows, out)
        self._note_times(rows)
        out.into(self.store)
        yield from self._for_events(rows, news)

    def _note_times(self, rows: Rows) -> None:
        """Keep the first and the last time that rows name."""
        if np.isnan(self.first_time):
            self.first_time = self._time_in(rows, rows.filled[:2000])
        last = self._time_in(rows, rows.filled[:-500:-1])
        self.last_time = self.last_time if np.isnan(last) else last

    def _time_in(self, rows: Rows, which: NDArray[np.intp]) -> float:
        for i in which.tolist():
            start = int(rows.start[i])
            if not _CLOCK.search(rows.padded, start, start + min(int(rows.length[i]), 400)):
                continue
            row = rows.bytes(i)[:400]
            shape = row.translate(_ONE_DIGIT)
            if shape in self.timeless:
                continue
            wall = self.parser.wall_time(row)
            if wall is not None:
                return wall
            if len(self.timeless) < _MOST_SHAPES:
                self.timeless.add(shape)
        return float("nan")

    def _for_events(self, rows: Rows, news: NDArray[np.intp]) -> Iterator[tuple[int, str]]:
        """The lines that may report a failure, and those that follow one of them."""
        if self.bulk.fast:
            rows.show_after(news, NEAR)
            rows.hidden[: int(np.searchsorted(rows.start, self.open))] = False
            self.open = max(int(rows.start[news].max(initial=-NEAR)) + NEAR, self.open) - rows.size
            if rows.block.first_line == 1:
                rows.hidden[:600] = False
            rows.hidden[-20:] = False  # the end shows whether the log was cut
        else:
            rows.hidden[:] = False
        yield from rows.shown()


def _before_first(resolved: Resolved) -> int:
    """The number of lines before the first one with a step; before the first number, where there is no step."""
    known = resolved.line[resolved.step != NO_STEP] if (resolved.step != NO_STEP).any() else resolved.line
    return int(known.min()) - 1 if len(known) else 0


def _is_done(plan: dict[str, Any]) -> bool:
    """Whether the last rows are those of the last planned step or epoch."""
    return bool(plan) and plan["done"] >= plan["planned"]


def _last_fall(resolved: Resolved) -> int:
    """The last line at which the steps of a rank go back; -1 if they never do."""
    known = np.flatnonzero(resolved.step != NO_STEP)
    known = known[np.argsort(resolved.rank[known], kind="stable")]
    step, rank = resolved.step[known], resolved.rank[known]
    fell = (step[1:] < step[:-1]) & (rank[1:] == rank[:-1])
    return int(resolved.line[known[1:]][fell].astype(np.int64).max(initial=-1))


def _went_back(resolved: Resolved, line: int) -> bool:
    """True if, after `line`, steps are repeated and then exceeded. Ranks of one training are not as far apart."""
    known = resolved.step != NO_STEP
    if not known.any() or not resolved.line[known][0] <= line:
        return False
    rank = resolved.rank[known][np.searchsorted(resolved.line[known], line, side="right") - 1]
    known &= resolved.rank == rank
    steps, is_after = resolved.step[known], resolved.line[known] > line
    before, after = distinct(steps[~is_after]), distinct(steps[is_after])
    again = np.isin(after, before) & (after < steps[~is_after][-1])
    return bool(min(np.count_nonzero(again), np.count_nonzero(after > before[-1])) >= _STEPS_APART)


def _with_steps(events: list[Event], resolved: Resolved) -> list[Event]:
    """Each event with the step that it names itself, else the last step printed before it by its rank.

    A rank that printed none gets the last step of any rank.
    """
    known = resolved.step != NO_STEP
    if not events or not known.any():
        return [replace(e, step=_own_step(e, "step", None, None)) if e.step is None else e for e in events]
    lines, steps, ranks = resolved.line, resolved.step, resolved.rank
    if not known.all():
        lines, steps, ranks = lines[known], steps[known], ranks[known]
    last = np.iinfo(lines.dtype).max
    line = np.array([last if e.line is None else e.line for e in events], lines.dtype)  # of another type: a copy of all
    ends = np.searchsorted(lines, line, side="right")
    cuts = distinct(ends[ends < len(lines)])
    most_after = np.maximum.accumulate(np.maximum.reduceat(steps, cuts)[::-1])[::-1] if len(cuts) else cuts
    of_rank = {r: np.flatnonzero(ranks == r) if r is not None else ranks[:0] for r in {e.rank for e in events}}
    dated = []
    for event, end in zip(events, ends.tolist(), strict=True):
        step, most = None, None
        if end:
            rank = of_rank[event.rank]
            own = int(np.searchsorted(rank, end))
            step = int(steps[rank[own - 1] if own else end - 1])
        if end < len(lines):
            most = int(most_after[np.searchsorted(cuts, end)])
        if end < len(lines) and step is not None and _own_batch(event, resolved.axis, step, int(steps[end])):
            step = event.fields["batch"]
        step = _own_step(event, resolved.axis, step, most)
        dated.append(replace(event, step=step) if step is not None and event.step is None else event)
    return dated


def _own_batch(event: Event, axis: str, before: int, following: int) -> bool:
    """Whether the batch that a message names is the step between those printed before and after it: it was skipped."""
    batch = event.fields.get("batch")
    return axis == "step" and isinstance(batch, int) and before < batch <= following


def _own_step(event: Event, axis: str, before: int | None, most_after: int | None) -> int | None:
    """The step that the message names, unless it counts otherwise than the rows around it; else `before`.

    Where the steps are epochs (`axis`), the epoch. `before`: the last step printed before it; `most_after`: the highest
    one after it.
    """
    own = event.fields.get("epoch" if axis == "epoch" else "step")
    if not isinstance(own, int) or isinstance(own, bool):
        return before
    fits = (before is None or own >= before) and (most_after is None or own <= most_after)
    return own if fits else before
