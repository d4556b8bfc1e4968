"""What was seen in a log, before it is folded into events: the same failure may be printed by many ranks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.core.model import Event
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postmortem.core.model import Severity
    from postmortem.signatures import Signature

_VARIES = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")
_LONGEST_MESSAGE = 1000
_AS_WARNING = re.compile(r"\b(?:User|Runtime|Future|Deprecation|PendingDeprecation|Resource|Possible\w{1,20}|Lightning\w{0,20})Warning: ")
_OF_A_TRACEBACK = frozenset({"text", "exception", "exception_class", "exception_message", "frame", "causes", "advice"})
_GOES_ON = ("goes-on", "cuda-oom-retries")
_SAID_WITHIN = 40
"""Lines behind a failure within which its program says that it goes on."""
_MOST, _MOST_ALIKE = 20_000, 1_000
"""Occurrences that are kept, and those of one kind."""
_FLUSHED = 8192
"""Bytes that a process may still write from its buffer after it failed: less than this is not "it went on"."""


@dataclass(slots=True, kw_only=True)
class Occurrence:
    """One appearance of a failure text.

    `line` is 1-based, `first_line` where its traceback begins; `attempt` counts the starts of a job that are
    appended in one file; `progress` is how many bytes of training and `ordinary` how many lines of other output
    the log had shown before it; `uncaught`: its stack begins where Python begins, so that nothing can have caught it;
    `goes_on` is where its program says that it goes on nevertheless.
    """

    signature: Signature
    severity: Severity
    line: int
    first_line: int
    message: str
    rank: int | None = None
    wall_time: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    exception: str = ""
    attempt: int = 0
    progress: int = 0
    ordinary: int = 0
    uncaught: bool = False
    goes_on: Occurrence | None = None


class Kept:
    """The occurrences of a log: all of them, and of a flood the first ones, the last, and how many they were.

    `occurrences` are in the order in which they were added; `more` says how often a key came again without being kept.
    """

    def __init__(self) -> None:
        self.occurrences: list[Occurrence] = []
        self.more: Counter[tuple[object, ...]] = Counter()
        self._alike: Counter[tuple[object, ...]] = Counter()
        self._last: dict[tuple[object, ...], Occurrence] = {}

    def add(self, seen: Occurrence) -> None:
        kind = key_of(seen)
        if self._alike[kind] < _MOST_ALIKE and len(self.occurrences) < _MOST:
            self._alike[kind] += 1
            self.occurrences.append(seen)
            return
        if kind not in self._last and len(self._last) >= _MOST:  # what ended the run is among the last
            del self._last[oldest := next(iter(self._last))]
            del self.more[oldest]
        self._last[kind] = seen
        self.more[kind] += 1

    def close(self) -> list[Occurrence]:
        """All that is kept, in the order of their lines."""
        self.more.subtract(dict.fromkeys(self._last, 1))
        self.occurrences = sorted((*self.occurrences, *self._last.values()), key=lambda seen: seen.line)
        self._last = {}
        return self.occurrences


@dataclass(slots=True)
class Failure:
    """Occurrences of the same thing, the first of them in front. `severity` and `victim_of` are decided at the end."""

    first: Occurrence
    ranks: list[int]
    count: int
    last: Occurrence
    fields: dict[str, Any]
    severity: Severity
    members: list[Occurrence]
    victim_of: Failure | None = None

    @property
    def signature(self) -> Signature:
        return self.first.signature

    def event(self, path: str, source: str) -> Event:
        """The event that reports see."""
        fields = dict(self.fields)
        if self.count > 1:
            fields |= {"count": self.count, "last_line": self.last.line}
            latest = {k: v for k, v in self.last.fields.items() if fields.get(k) != v and k != "text" and not isinstance(v, (dict, list))}
            if latest:
                fields["last"] = latest
        if len(self.ranks) > 1 or (self.ranks and self.count > 1):
            fields["ranks"] = self.ranks
        if self.first.first_line != self.first.line:
            fields["first_line"] = self.first.first_line
        if self.first.attempt:
            fields["attempt"] = self.first.attempt + 1
        if self.victim_of is not None:
            root = self.victim_of
            fields["victim_of"] = {"kind": root.signature.id, "line": root.first.line, "rank": root.first.rank}
        return Event(
            kind=self.signature.id,
            severity=self.severity,
            message=self.first.message[:_LONGEST_MESSAGE],
            source=source,
            file=path,
            line=self.first.line,
            rank=self.first.rank,
            wall_time=self.first.wall_time if self.first.wall_time is not None else float("nan"),
            fields=fields,
        )


def soften(occurrences: Iterable[Occurrence], progress: int) -> list[Occurrence]:
    """Lowers what cannot have ended the run: exceptions that Python ignored, and failures that a library only warns of.

    Failures whose program says that it goes on are marked; notes that say so of no failure are left out. `progress` is
    the bytes of training in all.
    """
    by_line = sorted(occurrences, key=lambda o: o.first_line)
    ignored: dict[int | None, int] = {}
    for seen in by_line:
        if seen.signature.id == "exception-ignored":
            ignored[seen.rank] = seen.line
        elif seen.exception and 0 <= seen.first_line - ignored.get(seen.rank, -10) <= 2:
            seen.severity = "info"
            seen.fields["ignored"] = True
        elif seen.severity == "error" and not seen.exception and _AS_WARNING.search(seen.message):
            seen.severity = "warning"
    notes = [seen for seen in by_line if seen.signature.id in _GOES_ON]
    lines = [note.line for note in notes]
    died = max((seen.line for seen in by_line if seen.signature.role == "wrapper" and seen.severity == "error"), default=0)
    spoken_of = set()
    for seen in by_line:
        if seen.severity == "error" and (seen.exception or seen.signature.role == "cause"):
            near = notes[bisect_left(lines, seen.first_line - 1) : bisect_right(lines, seen.line + _SAID_WITHIN)]
            near = [seen] if CATALOGUE["goes-on"].match(seen.message) is not None else near
            seen.goes_on = next((note for note in near if _speaks_of(note, seen) and _went_on(note, seen, died, progress)), None)
            spoken_of.add(id(seen.goes_on))
    return [seen for seen in occurrences if seen.signature.id != "goes-on" or id(seen) in spoken_of]


def _speaks_of(note: Occurrence, seen: Occurrence) -> bool:
    """Whether a note that the program goes on is of this failure: its own words, of the same process behind it, or right before
    its traceback; what a search says of a trial stands behind its failure."""
    if note is seen:
        return True
    before = note.line < seen.first_line and not seen.uncaught and "trial" not in note.fields
    return note.rank == seen.rank and (before or note.line > seen.line)


def _went_on(note: Occurrence, seen: Occurrence, died: int, progress: int) -> bool:
    """Whether training follows what a program said; where nothing can have caught the failure, or a launcher reports a death
    behind it (in line `died`), it must."""
    return progress > note.progress or not (seen.uncaught or died > note.line)


def fold(occurrences: Iterable[Occurrence], more: Mapping[tuple[object, ...], int]) -> list[Failure]:
    """Joins what says the same, on any rank, into one failure each; order of first appearance.

    The same are: appearances that agree in the fields named by `Signature.same`; else warnings and notes of one
    signature; else errors whose class and message agree but for their numbers. Errors with training between
    them are not the same. `more` says how often a key came again without being kept.
    """
    failures: list[Failure] = []
    latest: dict[tuple[object, ...], Failure] = {}
    for seen in occurrences:
        key = key_of(seen)
        known = latest.get(key)
        if known is not None and seen.severity == "error" and seen.progress - known.last.progress > _FLUSHED:
            known = None
        if known is None:
            ranks = [seen.rank] if seen.rank is not None else []
            known = latest[key] = Failure(seen, ranks, 1, seen, dict(seen.fields), seen.severity, [seen])
            failures.append(known)
            continue
        known.count += 1
        known.last = seen
        known.members.append(seen)
        if known.first.rank in (None, seen.rank):
            contradicts = any(known.fields[k] != v for k, v in seen.fields.items() if k in known.fields and k not in _OF_A_TRACEBACK)
            if not contradicts:  # else the numbers of two messages would be mixed
                known.fields = seen.fields | known.fields
            if seen.exception and not known.first.exception:  # an exception says more than the warning lines before it
                seen.first_line = min(seen.first_line, known.first.first_line)
                known.first = seen
                known.fields = dict(seen.fields) if contradicts else known.fields
        if known.first.rank is None and "pid" in seen.signature.same:
            known.first.rank = seen.rank
        if seen.rank is not None and seen.rank not in known.ranks:
            known.ranks.append(seen.rank)
    for key, count in more.items():
        if (known := latest.get(key) or latest.get((*key[:2], True, *key[3:]))) is not None:
            known.count += count
    for failure in failures:
        failure.ranks.sort()
    return failures


def trained_on(failure: Failure, progress: int) -> int:
    """Bytes of training that the log shows after a failure, of `progress` in all; 0 if it may be flushed output."""
    after = progress - failure.last.progress
    return after if after > _FLUSHED else 0


def key_of(seen: Occurrence) -> tuple[object, ...]:
    """Occurrences with the same key are the same failure; see `fold`."""
    signature = seen.signature
    if signature.same:
        return (signature.id, seen.attempt, seen.goes_on is not None, *(str(seen.fields.get(name)) for name in signature.same))
    if seen.severity != "error":
        return (signature.id, seen.attempt)
    return (signature.id, seen.attempt, seen.goes_on is not None, seen.exception, _VARIES.sub("0", seen.message[:2000])[:200])
