"""Dialects: one file per style in which programs print their metrics.

A dialect is a subclass of `Dialect` registered by ``@dialect``. It looks at one row (a line, or one state of a
redrawn bar) and answers with a `Record`, or None where the row is not its own. Which dialects a file uses is
decided by evidence: rows that it explains, row by row, so a file may change its style in the middle. What no dialect claims goes
to the general miner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    import re

    from postmortem.readers.text.records.record import Record, Row


class Dialect:
    """Base of all dialects. One instance reads one file, so state may be kept on it (by rank)."""

    name: ClassVar[str]
    priority: ClassVar[int] = 50
    """Lower is asked first: the more specific, the lower."""
    needles: ClassVar[tuple[str, ...]] = ()
    """A row is looked at only if it contains one of these; empty: always."""
    content: ClassVar[re.Pattern[str] | None] = None
    """Rows for which the answer depends on earlier rows. All others that differ only in their numbers share one parse."""

    def sniff(self, sample: str) -> bool:
        """Whether the dialect is to be asked at all, by the beginning of the file."""
        return True

    def parse(self, row: Row) -> Record | None:
        raise NotImplementedError


DIALECTS: Registry[type[Dialect]] = Registry(
    "postmortem.readers.text.dialects", key=lambda d: f"{d.priority:03d} {d.name}", group="postmortem.dialects"
)
dialect = DIALECTS.register
