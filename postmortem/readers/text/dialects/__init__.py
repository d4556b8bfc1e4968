"""Dialects: one file per style in which programs print their metrics.

A dialect is a subclass of `Dialect` registered by ``@dialect``. It looks at one row (a line, or one state of a
redrawn bar) and returns a `Record`, or None if the row is not of its style. The choice is made row by row, so a file
may change its style in the middle. Rows that no dialect takes go to the general miner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postmortem.core.registry import Registry

if TYPE_CHECKING:
    import re

    from postmortem.readers.text.records.record import Record, Row


class Dialect:
    """Base class of dialects. One instance reads one file, so it may keep state (by rank)."""

    name: ClassVar[str]
    priority: ClassVar[int] = 50
    """Lower ones are asked first: the more specific a dialect, the lower."""
    needles: ClassVar[tuple[str, ...]] = ()
    """Only rows that contain one of these are parsed; all rows if empty."""
    content: ClassVar[re.Pattern[str] | None] = None
    """Matches rows whose record depends on earlier rows. Others that differ only in their numbers share one parse."""

    def sniff(self, sample: str) -> bool:
        """Whether the dialect may occur in a file with this beginning."""
        return True

    def parse(self, row: Row) -> Record | None:
        """The record of a row; an empty one for a row of this style without metrics, None for a row of another."""
        raise NotImplementedError


DIALECTS: Registry[type[Dialect]] = Registry(
    "postmortem.readers.text.dialects",
    key=lambda d: d.name,
    order=lambda d: d.priority,
    noun="dialect",
    group="postmortem.dialects",
)
dialect = DIALECTS.register
