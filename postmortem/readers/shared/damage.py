"""Unreadable stretches of a binary file, and the problems that report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.core.model import Problem
from postmortem.readers.shared.decode import TRUNCATED_OR_CRASHED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from postmortem.core.model import Extent

MOST_REPORTED = 20
HOLE = 16
"""Fewer zero bytes than this may be the beginning of a record."""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Bytes `start` to `stop` (exclusive) of a file, which hold no readable record.

    `cut`: the file ends inside a record. `zeros`: most of these bytes are zero, and they are at one end.
    """

    start: int
    stop: int
    cut: bool = False
    zeros: bool = False

    @property
    def what(self) -> str:
        """The damage in words."""
        if self.zeros:
            if not self.start:
                return f"NUL bytes before the records: {TRUNCATED_OR_CRASHED}"
            return "NUL bytes instead of records, possibly from a system crash"
        if self.cut:
            return "truncated: the file ends inside a record"
        return "corrupt record: wrong checksum or format"

    @property
    def extent(self) -> Extent:
        """The file ends or begins with it, or goes on around it."""
        return "cut" if (not self.start if self.zeros else self.cut) else "records"


def problems_of(path: str, kind: str, damage: list[Damage], records: int, size: int) -> list[Problem]:
    """One Problem per stretch, in order of the file; from `MOST_REPORTED` on, the last one sums up the rest.

    `kind` is what the file should be ("an event file"), `records` the number of records that were read, `size` the
    number of bytes of the file.
    """
    if not damage:
        return []
    if not records and not all(d.cut for d in damage):
        what = f"not {kind}: it contains no valid record"
        return [Problem(path=path, offset=0, what=what, kept="nothing", lost=_bytes(damage), extent="file")]
    kept = f"{records} {'record' if records == 1 else 'records'}"
    stretches = sorted(damage)
    problems = [
        Problem(
            path=path,
            offset=d.start,
            what=d.what,
            kept=f"{kept} {_where(d, size)} it",
            lost=_bytes([d]),
            extent=d.extent,
        )
        for d in stretches[:MOST_REPORTED]
    ]
    if more := stretches[MOST_REPORTED:]:
        what = f"{len(more)} more corrupt regions, starting here"
        problems.append(Problem(path=path, offset=more[0].start, what=what, kept=kept, lost=_bytes(more)))
    return problems


def _where(damage: Damage, size: int) -> str:
    """On which side of the damage the other records stand."""
    if damage.cut or damage.stop >= size:
        return "before"
    return "around" if damage.start else "after"


def damage_in(data: bytes | NDArray[np.uint8], start: int, stop: int, cut: bool = False) -> Damage:
    """The stretch ``data[start:stop]`` as damage."""
    part = bytes(data[start:stop])
    zeros = len(part) - min(len(part.rstrip(b"\0")), len(part.lstrip(b"\0")))
    return Damage(start, stop, cut, zeros=zeros >= HOLE and zeros * 2 > stop - start)


def _bytes(damage: list[Damage]) -> str:
    return f"{sum(d.stop - d.start for d in damage)} bytes"
