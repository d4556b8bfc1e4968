"""Failures in the text of a log: tracebacks, known failure lines, and how the run ended.

`_scan` goes through the lines and collects what it meets, `_occurrences` folds what many ranks or many steps repeat,
`_enrich` adds what several failures say together, and `_ending` decides which of them is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.blame import judge
from postmortem.readers.text.failures.enrich import enrich
from postmortem.readers.text.failures.fold import fold, soften
from postmortem.readers.text.failures.scanner import Scanner
from postmortem.readers.text.steps.announced_length import Announcements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.core.model import Ended, Event


@dataclass(slots=True)
class EventReading:
    """What the text says beside its numbers. `ended` is None where it does not tell; `facts` holds "job_id",
    "world_size" and "ranks" (those that were seen) where the log shows them."""

    events: list[Event] = field(default_factory=list)
    ended: Ended | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    announced: Announcements = field(default_factory=Announcements)
    """How long the training was to be, where a line says it."""


def find_events(
    lines: Iterable[tuple[int, str]],
    *,
    path: str,
    source: str = "text",
    unterminated: bool = False,
    went_back: Callable[[int, Announcements], bool] = lambda line, announced: False,
) -> EventReading:
    """The events of a log, in the order of their lines.

    `lines` are (1-based physical line number, text); a carriage return inside a text starts a new state of it.
    `unterminated`: the file's last line has no newline. Steps are left to the caller, who may tell, once the lines are
    read, after which of them the training went back some steps and then on (`went_back`).
    """
    scanner = Scanner()
    announced = Announcements()
    scanner.read(announced.watch(lines))
    failures = fold(soften(scanner.close(), scanner.progress), scanner.kept.more)
    enrich(failures, scanner.ranks, scanner.world_size)
    ended = judge(
        failures,
        scanner.progress,
        scanner.ordinary,
        scanner.completion(),
        attempts=scanner.attempt,
        cut=unterminated and scanner.last_is_cut(),
        went_back=lambda line: went_back(line, announced),
    )
    reading = EventReading([f.event(path, source) for f in sorted(failures, key=lambda f: f.first.line)], ended, announced=announced)
    if scanner.ranks:
        reading.facts["ranks"] = sorted(scanner.ranks)
    if scanner.world_size:
        reading.facts["world_size"] = scanner.world_size
    job = next((f.fields["job"] for f in failures if "job" in f.fields), None)
    if job is not None:
        reading.facts["job_id"] = job
    return reading
