"""The lines of a text log around the errors in it, for the HTML page."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.printable import printable
from postmortem.core.report import Excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Event

_MOST, _BEFORE, _AFTER = 2, 8, 3  # errors shown, and how many lines before and after each
_LONGEST = 2000  # characters of a line that are shown
_LARGEST = 1 << 28  # bytes; the lines of a larger log are not searched for


def excerpts(events: Sequence[Event]) -> tuple[Excerpt, ...]:
    """The lines around the last errors of a run's text logs, in the order of the log.

    A log that is compressed, very large or gone since it was read has none.
    """
    errors = [(e.file, e.line) for e in events if e.severity == "error" and e.file and e.line]
    places = sorted(set(errors[-_MOST:]))
    found = [_excerpt(Path(file), line) for file, line in places]
    return tuple(e for e in found if e is not None)


def _excerpt(file: Path, line: int) -> Excerpt | None:
    first = max(line - _BEFORE, 1)
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        with file.open("rb") as log:
            raw = list(islice(log, first - 1, line + _AFTER))
    except OSError:
        return None
    if len(raw) <= line - first or b"\0" in raw[line - first]:  # shorter than when it was read, or not plain text
        return None
    lines = (text.decode("utf-8", "replace").rstrip("\r\n").rsplit("\r", 1)[-1] for text in raw)
    return Excerpt(file=str(file), first=first, at=line, lines=tuple(printable(text[:_LONGEST]) for text in lines))
