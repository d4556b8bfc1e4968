"""Failures in the text of a log: tracebacks, known failure lines, and how the run ended.

The scanner goes through the lines and collects occurrences; `fold` joins what many ranks or many steps repeat; `enrich`
adds what several failures show together; `blame` decides which of them ended the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.blame import blame
from postmortem.readers.text.failures.enrich import enrich
from postmortem.readers.text.failures.fold import fold, soften
from postmortem.readers.text.failures.scanner import Scanner
from postmortem.readers.text.steps.announced_length import Announcements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.core.model import Ended, Event


@dataclass(slots=True)
class EventReading:
    """What a log reports besides its numbers.

    `ended` is None if the text does not show how the run ended. `facts` holds "job_id", "world_size" and "ranks"
    (the ranks that were seen) where the log shows them.
    """

    events: list[Event] = field(default_factory=list)
    ended: Ended | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    announced: Announcements = field(default_factory=Announcements)
    """How long the training was to be, where a line announces it."""


def find_events(
    lines: Iterable[tuple[int, str]],
    *,
    path: str,
    source: str = "text",
    unterminated: bool = False,
    went_back: Callable[[int, Announcements], bool] = lambda line, announced: False,
    code_lines: list[int] | None = None,
) -> EventReading:
    """The events of a log, in the order of their lines.

    `lines` are (1-based line number, text); after a carriage return inside a text, the line was redrawn.
    `unterminated`: the file's last line has no newline. `went_back` is asked only after all lines were read; see
    `blame`. The steps of the events are left to the caller. The lines of code in tracebacks are added to `code_lines`.
    """
    scanner = Scanner()
    if code_lines is not None:
        scanner.code_lines = code_lines
    scanner.read(lines)
    announced = scanner.announced
    progress = scanner.progress
    failures = fold(soften(scanner.close(), progress.training), scanner.found.dropped)
    enrich(failures, scanner.ranks, scanner.world_size)
    ended = blame(
        failures,
        progress,
        scanner.completion(),
        attempts=scanner.attempts.number,
        cut=unterminated and scanner.last_is_cut(),
        went_back=lambda line: went_back(line, announced),
    )
    events = [failure.event(path, source) for failure in sorted(failures, key=lambda failure: failure.first.line)]
    reading = EventReading(events, ended, announced=announced)
    if scanner.ranks:
        reading.facts["ranks"] = sorted(scanner.ranks)
    if scanner.world_size:
        reading.facts["world_size"] = scanner.world_size
    job = next((f.fields["job"] for f in failures if "job" in f.fields), None)
    if job is not None:
        reading.facts["job_id"] = job
    return reading
