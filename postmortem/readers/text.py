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
from postmortem.readers._quick import Quick
from postmortem.readers._rows import Ordered, Rows
from postmortem.readers._scan import prefilter
from postmortem.readers._shapes import FEW, LONGEST, RUN, Layout, Parsed, Template, equal_keys, fold, hashes, learn, read_one
from postmortem.readers._steps import resolve
from postmortem.readers._tables import ColumnTable
from postmortem.readers._track import MAYBE, NO_STEP, Track, row_of, stored
from postmortem.readers.dialects import DIALECTS, Record, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from postmortem.core.model import Event
    from postmortem.readers._lines import Block
    from postmortem.readers._prefix import Prefix
    from postmortem.readers._steps import Resolved
    from postmortem.readers.dialects import Dialect

_ENDINGS = {".out", ".log", ".err", ".txt", ""}
_JOB = re.compile(r"(?:SLURM_JOB_?ID|slurm job id|Job ID|job_id)\s*[=:]\s*(\d{3,12})", re.IGNORECASE)
_JOB_IN_NAME = re.compile(r"(?<![\d.])(\d{4,12})(?:_\d+)?(?=\.(?:out|err|log|txt)$)|(?:slurm|job)[-_.]?(\d{3,12})", re.IGNORECASE)
_YEAR = re.compile(rb"(?<!\d)(20\d\d)[-/]\d\d[-/]\d\d")
_GLUED = re.compile(
    r"(?<=[\d.\])])(?=(?:step|iter|iteration|epoch|Step|Iter|Iteration|Epoch)\b[ :=#\[(]{0,3}\d|\{'[a-z])|(?<=\d)(?=\[(?:rank|default)\d)"
)
_NUMBER_WORDS = re.compile(r"\d|\bnan\b|\binf", re.IGNORECASE)
_CLOCK = re.compile(rb"\d\d:\d\d")
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
MANY = 48
"""Fewer rows of one layout than these are not worth reading by columns."""
MOST_LAYOUTS, MOST_SKELETONS, MOST_VARIANTS = 50_000, 20_000, 64
STRANGERS, SAMPLE, QUICK, AT_ONCE = 4_096, 256, 131_072, 65_536
"""After so many rows in a row whose words no other row has, the next `QUICK` are read by a simple pattern, then `SAMPLE` properly."""
_KEPT = 31 << 20
"""Bytes; just below the largest threshold up to which glibc learns from what is freed (mallopt(3), M_MMAP_THRESHOLD)."""
NEAR = 32_768
"""Bytes behind a line that may matter in which every line is shown to the search for events."""
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


def read_text(path: Path, dialects: Iterable[type[Dialect]] | None = None, *, fast: bool = True) -> Reading:
    """Reads a text log with these dialects (default: all that are registered) and the general miner.

    `fast` False parses every row on its own: the same reading, slowly, for tests.
    """
    return _File(path, DIALECTS if dialects is None else dialects, fast).read()


class _File:
    """One log while it is read."""

    def __init__(self, path: Path, dialects: Iterable[type[Dialect]], fast: bool = True) -> None:
        self.path = path
        self.track = Track()
        self.dialects: list[Dialect] = [*(d() for d in dialects), ColumnTable()]
        self.names = [*(d.name for d in self.dialects), "general miner"]
        self.fast = fast
        self.layouts: dict[tuple[int, int], list[Layout]] = {}
        self.n_layouts = 0
        self.strangers = 0
        self.quick = 0
        self.read_quickly = 0
        self.quick_way = Quick(self.track, len(self.dialects))
        self.skeletons: dict[bytes, Template] = {}
        self.met: set[bytes] = set()
        self.timeless: set[bytes] = set()
        """Rows, but for their digits, that name no time."""
        self.explained: Counter[str] = Counter()
        self.unexplained = 0
        self.labels = False
        self.year = 1970
        self.first_time = np.nan
        self.last_time = np.nan
        self.job: str | None = None
        self.cut_rows = 0
        self.active = list(enumerate(self.dialects))

    def read(self) -> Reading:
        np.empty(_KEPT, np.uint8)  # freed at once: from here on glibc keeps what is freed for the next block, as fresh pages cost most
        lines = Lines(self.path)
        found = find_events(self._lines(lines), path=str(self.path), unterminated=lines.ends_open())
        resolved = resolve(self.track, found.announced)
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
            facts=found.facts | ({"plan": resolved.plan} if resolved.plan else {}),
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
        parts = ", ".join(f"{name} {count}" for name, count in sorted(self.explained.items(), key=lambda e: (-e[1], e[0])))
        if self.read_quickly:
            parts += f", simple pattern {self.read_quickly} (their words occur in no other line, so each was only searched for names and numbers)"
        return [f"lines explained: {parts}; with numbers but not explained: {self.unexplained}"]

    def _lines(self, lines: Lines) -> Iterator[tuple[int, str]]:
        """Reads the numbers of each block and hands its lines on to the search for events."""
        size = max(self.path.stat().st_size, 1)
        for i, block in enumerate(lines):
            self.track.share = min(1.0, (block.offset + block.size) / size)
            if i == 0:
                self._look(block)
            yield from self._block(block)

    def _look(self, block: Block) -> None:
        head = block.data[: min(block.size, 262_144)]
        sample = [text_of(line) for line in head.split(b"\n", 400)[:400]]
        self.labels = labelled(sample)
        text = "\n".join(sample)
        self.active = [(i, d) for i, d in enumerate(self.dialects) if d.sniff(text)]
        found = _YEAR.search(head)
        self.year = int(found[1]) if found else datetime.fromtimestamp(self.path.stat().st_mtime, UTC).year
        job = _JOB.search(text_of(head[:65_536]))
        self.job = job[1] if job else None

    def _block(self, block: Block) -> Iterator[tuple[int, str]]:
        rows = Rows(block)
        out = Ordered(rows.line)
        slow = self._by_layout(rows, out) if self.fast else rows.filled
        seen = self._one_by_one(rows, slow, out)
        self._note_times(rows)
        out.into(self.track)
        yield from self._for_events(rows, seen)

    def _by_layout(self, rows: Rows, out: Ordered) -> NDArray[np.intp]:
        """Reads the rows whose layout is known or common -> the others, in order."""
        slow: list[NDArray[np.intp]] = [rows.filled[rows.length[rows.filled] > LONGEST]]
        for length, group in rows.by_length():
            if len(group) < FEW:
                slow.append(group)
                continue
            words = rows.words(group, length)
            folded = fold(words, length)
            keys = hashes(folded)
            *common, rest = equal_keys(keys)
            slow += [self._same_key(rows, group, same, length, int(keys[same[0]]), words, folded, out) for same in common]
            slow.append(group[rest])
        return np.sort(np.concatenate(slow))

    def _same_key(
        self,
        rows: Rows,
        group: NDArray[np.intp],
        mine: NDArray[np.intp],
        length: int,
        key: int,
        words: NDArray[np.uint64],
        folded: NDArray[np.uint64],
        out: Ordered,
    ) -> NDArray[np.intp]:
        """Reads the rows `mine` of the group, the same but for digits -> those rows that must be read one by one."""
        layouts = self.layouts.setdefault((length, key), [])
        if len(mine) < len(words):
            group, words, folded = group[mine], words.take(mine, 0), folded.take(mine, 0)
        left = np.ones(len(group), bool)
        slow = []
        for turn in range(MOST_VARIANTS):
            if turn == len(layouts):
                if np.count_nonzero(left) < FEW or self.n_layouts >= MOST_LAYOUTS:
                    break
                first = int(np.argmax(left))
                row = rows.bytes(int(group[first]))
                layouts.append(Layout(self._template(row), row, folded[first].copy()))
                self.n_layouts += 1
            layout = layouts[turn]
            if turn == 0 or not np.array_equal(layout.literal, layouts[turn - 1].literal):
                alike = layout.alike(folded)
            here = layout.named(words, left & alike)
            taken = np.flatnonzero(here)
            left &= ~here
            template = layout.template
            if not template.pure or (template.row is not None and len(taken) < MANY):
                slow.append(group[taken])
            elif len(taken):
                where = group[taken]
                if template.row is not None:
                    found, values = layout.read(words.take(taken, 0) if len(taken) < len(words) else words)
                    out.put(where, found, template.codes, values)
                self._count(template, len(taken))
                if template.hide:
                    rows.hidden[where] = True
            if not left.any():
                break
        return np.concatenate([*slow, group[left]])

    def _template(self, row: bytes) -> Template:
        skeleton = RUN.sub(b"0", row)
        template = self.skeletons.get(skeleton)
        if template is None:
            template = learn(row, self._alone, self._rank_of, self.year)
            template.hide = template.pure and not prefilter().lines_in(row + b"\n")
            if len(self.skeletons) < MOST_SKELETONS:
                self.skeletons[skeleton] = template
        return template

    def _count(self, template: Template, n: int) -> None:
        if template.dialect >= 0:
            self.explained[self.names[template.dialect]] += n
        elif template.numbers:
            self.unexplained += n

    def _one_by_one(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> NDArray[np.intp]:
        """Reads rows by their template where it is known, else by parsing -> those that may be news."""
        parsed: list[NDArray[np.intp]] = []
        at = 0
        while at < len(which):
            if self.fast and self.strangers > STRANGERS and self.quick < QUICK:
                chunk = which[at : at + AT_ONCE]
                self.quick += len(chunk)
                self.read_quickly += self.quick_way.read(rows, chunk, out)
                rows.hidden[chunk] = True
            else:
                chunk = which[at : at + SAMPLE]
                new = self._parsed(rows, chunk, out)
                self.strangers = self.strangers + len(new) if len(new) > 0.8 * len(chunk) and len(chunk) >= FEW else 0
                self.quick = 0
            parsed.append(chunk)
            at += len(chunk)
        return np.concatenate(parsed) if parsed else which

    def _parsed(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> list[int]:
        """Reads rows one by one -> those whose skeleton was never met before."""
        new: list[int] = []
        for i in which.tolist():
            row = rows.bytes(i)
            if self.fast and len(row) <= LONGEST:
                skeleton = RUN.sub(b"0", row)
                template = self.skeletons.get(skeleton)
                if template is None:
                    if skeleton in self.met:
                        template = self._template(row)
                    else:
                        new.append(i)
                        if len(self.met) < MOST_SKELETONS:
                            self.met.add(skeleton)
                if template is not None and template.pure:
                    if template.row is not None and (read := read_one(template, row)) is not None:
                        found, values = read
                        out.add(i, found, template.codes.tolist(), values)
                    self._count(template, 1)
                    rows.hidden[i] = template.hide
                    continue
            self._row(row, int(rows.line[i]), i, out)
        return new

    def _row(self, row: bytes, line: int, i: int, out: Ordered) -> None:
        if len(row) > LONGEST_ROW:
            self.cut_rows += 1
            row = row[:LONGEST_ROW]
        text = text_of(row)
        for part in _GLUED.split(text) if _GLUED.search(text) else (text,):
            record, dialect, prefix, _ = self._part(part, line)
            if dialect >= 0 and not (record is None and not part.strip()):
                self.explained[self.names[dialect]] += 1
            elif record is None and _NUMBER_WORDS.search(part):
                self.unexplained += 1
            if record is not None:
                found, codes, values = self._stored(record, dialect, prefix, line)
                out.add(i, found, codes, values)

    def _part(self, part: str, line: int) -> tuple[Record | None, int, Prefix, str]:
        text, prefix = peel(part, labels=self.labels, year=self.year)
        record, dialect = self._understand(text, prefix, line)
        return (record if record is not None and _says_something(record) else None), dialect, prefix, text

    def _stored(self, record: Record, dialect: int, prefix: Prefix, line: int) -> tuple[tuple[Any, ...], list[int], list[float]]:
        wall = prefix.wall_time if prefix.wall_time is not None else record.wall_time
        codes = [self.track.code(stored(v.tag, record)) for v in record.values] + [self.track.code(MAYBE + tag) for tag in record.absent]
        values = [v.number for v in record.values] + [np.nan] * len(record.absent)
        return row_of(record, line, _rank(prefix, record), np.nan if wall is None else wall, dialect, len(codes)), codes, values

    def _alone(self, row: bytes) -> Parsed | None:
        """What a row says regardless of the rows before it; None where it may depend on them, or is two rows in one."""
        try:
            text = row.decode("utf-8")
        except UnicodeDecodeError:
            return None
        rest, prefix = peel(text, labels=self.labels, year=self.year)
        if _GLUED.search(text) or any(d.content is not None and d.content.match(rest) for _, d in self.active):
            return None
        record, dialect = self._understand(rest, prefix, 0)
        offset = len(row) - len(rest.encode())
        if record is not None and record.once:
            return None
        if record is None or not _says_something(record):
            return Parsed(None, None, [], [], dialect, prefix, offset)
        found, codes, values = self._stored(record, dialect, prefix, 0)
        return Parsed(record, found, codes, values, dialect, prefix, offset)

    def _rank_of(self, row: bytes) -> int | None:
        prefix = peel(text_of(row), labels=self.labels, year=self.year)[1]
        return _rank(prefix, Record())

    def _note_times(self, rows: Rows) -> None:
        """Keeps the first and the last time that rows named."""
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
            wall = peel(text_of(row), labels=self.labels, year=self.year)[1].wall_time
            if wall is not None:
                return wall
            if len(self.timeless) < MOST_SKELETONS:
                self.timeless.add(shape)
        return float("nan")

    def _for_events(self, rows: Rows, parsed: NDArray[np.intp]) -> Iterator[tuple[int, str]]:
        """The lines that may matter for what went wrong: not the ones whose words cannot, unless they follow one that may."""
        if self.fast:
            rows.show_after(rows.that_may_matter(parsed), NEAR)
            if rows.block.first_line == 1:
                rows.hidden[:600] = False
            rows.hidden[-20:] = False  # the end tells whether the log was cut
        else:
            rows.hidden[:] = False
        yield from rows.shown()

    def _understand(self, text: str, prefix: Prefix, line: int) -> tuple[Record | None, int]:
        """What a row says, and by which dialect; None with a dialect: a row of its format that says nothing."""
        if not text or text.isspace():
            return None, -1
        row = Row(text, prefix, line, -1 if prefix.best_rank is None else prefix.best_rank)
        for i, dialect in self.active:
            if dialect.needles and not any(n in text for n in dialect.needles):
                continue
            record = dialect.parse(row)
            if record is not None:
                return record, i
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
    known = resolved.step != NO_STEP
    if not events or not known.any():
        return events
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
