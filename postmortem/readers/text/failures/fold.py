"""Occurrences of failures in a log, merged into failures: many ranks may print the same failure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.core.model import Event
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postmortem.core.model import Severity
    from postmortem.signatures import Signature

_VARIES = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")
_LONGEST_MESSAGE = 1000
_AS_WARNING = re.compile(
    r"\b(?:User|Runtime|Future|Deprecation|PendingDeprecation|Resource|Possible\w{1,20}|Lightning\w{0,20})Warning: "
)
_OF_A_TRACEBACK = frozenset({"text", "exception", "exception_class", "exception_message", "frame", "causes", "advice"})
_GOES_ON = ("goes-on", "cuda-oom-retries")
_REPORTED_WITHIN = 40
"""Lines after a failure within which its program reports that it continues."""
_MOST, _MOST_ALIKE = 20_000, 1_000
"""Occurrences that are kept, and those with the same key."""
_TELLING = 10
"""Occurrences from which on it is told by which line half of them had come."""
_MOST_PARAMETERS = 100
_FLUSHED = 8192
"""Bytes that a process may still write from its buffer after it failed: fewer do not show that it continued."""


class Key(NamedTuple):
    """Occurrences with the same key are the same failure; see `fold`.

    `text` is what else must agree: the fields named by `Signature.same`, or the class and message of an error.
    """

    signature: str
    attempt: int
    goes_on: bool = False
    text: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Occurrence:
    """One appearance of a failure text.

    `line` is 1-based, `first_line` where its traceback begins; `attempt` counts the starts of a job that are
    appended in one file; `training` (bytes) and `ordinary` (lines) are the counts of `Progress` before it;
    `uncaught`: its stack begins where Python begins, so nothing can have caught it; `in_thread`: it begins where a
    thread begins; `in_request`: where a web server handles a request; `goes_on` is the note in which its program
    reports that it continues nevertheless.
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
    training: int = 0
    ordinary: int = 0
    uncaught: bool = False
    in_thread: bool = False
    in_request: bool = False
    goes_on: Occurrence | None = None

    @property
    def key(self) -> Key:
        """What this occurrence has in common with others of the same failure."""
        signature = self.signature
        if signature.same:
            text = tuple(str(self.line if name == "line" else self.fields.get(name)) for name in signature.same)
        elif self.severity == "error":
            text = (self.exception, _VARIES.sub("0", self.message[:2000])[:200])
        else:
            return Key(signature.id, self.attempt)
        return Key(signature.id, self.attempt, self.goes_on is not None, text)


class Occurrences:
    """The occurrences of a log. Of a flood with the same key, only the first ones, the last, and their number are kept.

    `kept` is in the order of `add`; `dropped` counts, for each key, the occurrences that were not kept.
    """

    def __init__(self) -> None:
        self.kept: list[Occurrence] = []
        self.dropped: Counter[Key] = Counter()
        self._alike: Counter[Key] = Counter()
        self._last: dict[Key, Occurrence] = {}

    def add(self, seen: Occurrence) -> None:
        """Keeps an occurrence, or counts it where there are too many like it."""
        key = seen.key
        if self._alike[key] < _MOST_ALIKE and len(self.kept) < _MOST:
            self._alike[key] += 1
            self.kept.append(seen)
            return
        if key not in self._last and len(self._last) >= _MOST:  # what ended the run is among the last
            del self._last[oldest := next(iter(self._last))]
            del self.dropped[oldest]
        self._last[key] = seen
        self.dropped[key] += 1

    def withdraw(self, signature: Signature, first: int, last: int, among: int) -> None:
        """Removes the matches of `signature` in lines `first` to `last`: they are the message of one exception.

        Only the newest `among` occurrences are looked at; exceptions stay.
        """
        start = max(0, len(self.kept) - among)
        self.kept[start:] = [
            o for o in self.kept[start:] if o.signature is not signature or o.exception or not first <= o.line <= last
        ]

    def close(self) -> list[Occurrence]:
        """All that is kept, in the order of their lines."""
        self.dropped.subtract(dict.fromkeys(self._last, 1))
        self.kept = sorted((*self.kept, *self._last.values()), key=lambda seen: seen.line)
        self._last = {}
        return self.kept


@dataclass(slots=True)
class Failure:
    """Occurrences of the same failure; `first` represents them. `blame` sets `severity` and `victim_of`."""

    first: Occurrence
    ranks: list[int]
    count: int
    last: Occurrence
    fields: dict[str, Any]
    severity: Severity
    members: list[Occurrence]
    victim_of: Failure | None = None

    @classmethod
    def of(cls, seen: Occurrence) -> Failure:
        """The failure of a single occurrence."""
        ranks = [] if seen.rank is None else [seen.rank]
        return cls(seen, ranks, 1, seen, dict(seen.fields), seen.severity, [seen])

    @property
    def signature(self) -> Signature:
        """The signature that found it."""
        return self.first.signature

    def add(self, seen: Occurrence) -> None:
        """Takes in another occurrence of the same failure."""
        self.count += 1
        self.last = seen
        self.members.append(seen)
        if self.first.rank in (None, seen.rank):
            self._join_fields(seen)
        if self.first.rank is None and "pid" in seen.signature.same:
            self.first.rank = seen.rank
        if seen.rank is not None and seen.rank not in self.ranks:
            self.ranks.append(seen.rank)

    def _join_fields(self, seen: Occurrence) -> None:
        """Adds the fields of `seen`, unless the two disagree: the numbers of two messages are not mixed."""
        common = (self.fields.keys() & seen.fields.keys()) - _OF_A_TRACEBACK
        agrees = all(self.fields[name] == seen.fields[name] for name in common)
        if agrees:
            self.fields = seen.fields | self.fields
        if (
            seen.exception and not self.first.exception
        ):  # an exception has more details than the warning lines before it
            seen.first_line = min(seen.first_line, self.first.first_line)
            self.first = seen
            self.fields = self.fields if agrees else dict(seen.fields)

    def event(self, path: str, source: str) -> Event:
        """The event that reports see."""
        fields = dict(self.fields)
        if self.count > 1:
            fields |= {"count": self.count, "last_line": self.last.line}
            if latest := self._latest(fields):
                fields["last"] = latest
            if self.count == len(self.members) >= _TELLING:
                fields["half_line"] = self.members[self.count // 2].line
            if len(names := self._parameters()) > 1:
                fields["parameters"] = names
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

    def _parameters(self) -> list[str]:
        """The parameters that the occurrences name, in the order of the log."""
        named = (str(seen.fields["parameter"]) for seen in self.members if "parameter" in seen.fields)
        return list(dict.fromkeys(named))[:_MOST_PARAMETERS]

    def _latest(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The plain fields of the last occurrence that differ from `fields`."""
        return {
            name: value
            for name, value in self.last.fields.items()
            if fields.get(name) != value and name != "text" and not isinstance(value, (dict, list))
        }


def soften(occurrences: Iterable[Occurrence], training: int) -> list[Occurrence]:
    """Lowers what cannot have ended the run: exceptions that Python ignored, and failures that a library only warns of.

    Links a failure to the note in which its program reports that it continues, and leaves out notes that belong to no
    failure. `training` is the bytes of training output in all.
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
    used = _link_notes(by_line, training)
    return [seen for seen in occurrences if seen.signature.id != "goes-on" or id(seen) in used]


def _link_notes(by_line: list[Occurrence], training: int) -> set[int]:
    """Sets `goes_on` of the failures whose program reports that it continues. Returns the ids of the notes used."""
    notes = [seen for seen in by_line if seen.signature.id in _GOES_ON]
    lines = [note.line for note in notes]
    reports = (seen.line for seen in by_line if seen.signature.role == "wrapper" and seen.severity == "error")
    died = max(reports, default=0)
    used = set()
    for seen in by_line:
        if seen.severity == "error" and (seen.exception or seen.signature.role == "cause"):
            first, last = seen.first_line - 1, seen.line + _REPORTED_WITHIN
            near = notes[bisect_left(lines, first) : bisect_right(lines, last)]
            near = [seen] if CATALOGUE["goes-on"].match(seen.message) is not None else near
            fits = (note for note in near if _is_about(note, seen) and _went_on(note, seen, died, training))
            seen.goes_on = next(fits, None)
            used.add(id(seen.goes_on))
    return used


def _is_about(note: Occurrence, seen: Occurrence) -> bool:
    """Whether a note that the program continues is about this failure.

    It is if it is the failure's own message, or comes from the same process, after the failure or right before its
    traceback. What a hyperparameter search reports about a trial comes after the trial's failure.
    """
    if note is seen:
        return True
    before = note.line < seen.first_line and not seen.uncaught and "trial" not in note.fields
    return note.rank == seen.rank and (before or note.line > seen.line)


def _went_on(note: Occurrence, seen: Occurrence, died: int, training: int) -> bool:
    """Whether to believe a note that the program continues.

    Where nothing can have caught the failure, or a launcher reports a death after it (in line `died`), training output
    must follow the note.
    """
    return training > note.training or not (seen.uncaught or died > note.line)


def fold(occurrences: Iterable[Occurrence], dropped: Mapping[Key, int]) -> list[Failure]:
    """Joins occurrences of the same failure, on any rank. Failures are in order of first appearance.

    Occurrences are the same if they agree in the fields named by `Signature.same`; else if they are warnings or notes
    of one signature; else if they are errors whose class and message agree but for their numbers. Errors with training
    between them are not the same. `dropped` is how often each key came again without being kept.
    """
    failures: list[Failure] = []
    latest: dict[Key, Failure] = {}
    for seen in occurrences:
        key = seen.key
        known = latest.get(key)
        if known is not None and not (seen.severity == "error" and seen.training - known.last.training > _FLUSHED):
            known.add(seen)
        else:
            latest[key] = Failure.of(seen)
            failures.append(latest[key])
    for key, count in dropped.items():
        if (known := latest.get(key) or latest.get(key._replace(goes_on=True))) is not None:
            known.count += count
    for failure in failures:
        failure.ranks.sort()
    return failures


def trained_on(failure: Failure, training: int) -> int:
    """Bytes of training output after a failure, of `training` in all; 0 if it may be flushed output."""
    after = training - failure.last.training
    return after if after > _FLUSHED else 0
