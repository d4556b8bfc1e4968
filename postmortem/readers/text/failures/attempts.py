"""How often a job began in one file: another attempt prints the first line once more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.readers.text.failures.tracebacks import HEADER
from postmortem.readers.text.lines.prefixes import peel

if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_A_JOB = re.compile(r"(?i)(?<![a-z])(?:job|restart|attempt|requeue|node|host|slurm|launch|try)")
"""Words of a line that a launcher or a job script prints at each start."""
_NAMES = re.compile(r"([\w.\-]++)")
"""Words of it; those with a digit may differ: a number, the name of a node."""
_SETTINGS = re.compile(r"([^(){}=]{1,80}[({])['\"]?\w{1,80}['\"]?\s?[=:]")
"""The words before printed settings, and the bracket that opens them."""


def _without_time(text: str) -> str:
    """A line without the prefix of its logger, as the start of every attempt prints it; that of a rank is unchanged."""
    rest, prefix = peel(text.strip()[:500])
    return rest.strip() if prefix.best_rank is None else text.strip()[:500]


_DATE = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? .{6,30}\d\d:\d\d")


@dataclass(slots=True)
class Attempts:
    """Counts the starts of a job that are appended in one file.

    The first line of the file but a date, printed again after a failure, starts another attempt; of a line with
    settings, as ``args: Namespace(lr=0.1)``, only what precedes them counts, as they may differ. So may the numbers in
    a line about the job: ``==== job 4410 restart_count=1 node=a-052 ====``. `number` is the current attempt, from 0.
    """

    first_line: re.Pattern[str] | None = None
    anchor: str = ""
    number: int = 0
    failed: bool = False

    def learn(self, texts: Iterable[str]) -> None:
        """Takes the first line that is not blank, without its time, unless it is too short to be recognised."""
        filled = (text for text in texts if text.strip())
        first = _without_time(next((text for text in filled if not _DATE.match(text)), ""))
        settings = _SETTINGS.match(first)
        first = settings[1] if settings is not None else first
        if HEADER in first or len(first) < 8:
            return
        pattern, self.anchor = re.escape(first), first
        if _OF_A_JOB.search(first):
            words = _NAMES.split(first)
            varies = [any(map(str.isdigit, word)) for word in words]
            pattern = "".join(r"[\w.\-]++" if v else re.escape(w) for w, v in zip(words, varies, strict=True))
            self.anchor = max((w for w, v in zip(words, varies, strict=True) if not v), key=len)
        self.first_line = re.compile(pattern + ("" if settings is not None else "$"))

    def starts(self, text: str) -> bool:
        """Whether a line is the first line of the file once more."""
        if self.first_line is None or self.anchor not in text:
            return False
        return self.first_line.match(_without_time(text)) is not None

    def next(self) -> None:
        """Starts another attempt; one without a failure is continued."""
        self.number += self.failed
        self.failed = False
