"""Unreadable stretches of a binary file, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass

from postmortem.core.model import Problem

MOST_TOLD = 20
HOLE = 16
"""Fewer zeros than these may well be the beginning of a record."""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Bytes of the file, from `start` to `stop`, that hold no readable record.

    `cut`: the file ends inside a record; `zeros`: most of these bytes, up to their end, are zero.
    """

    start: int
    stop: int
    cut: bool = False
    zeros: bool = False

    @property
    def what(self) -> str:
        if self.zeros:
            return "zero bytes where records should be, as a machine that went down leaves them"
        return "cut at the end: the file stops inside a record" if self.cut else "corrupt record: its checksum or its form is wrong"


def problems_of(path: str, kind: str, damage: list[Damage], records: int, size: int) -> list[Problem]:
    """One Problem per stretch, in order of the file; many of them are summed up in the last.

    `kind` is what the file should be ("an event file"), `records` how many were read around the damage, `size` the
    number of bytes of the file.
    """
    if not records and damage and not all(d.cut for d in damage):
        return [Problem(path=path, offset=0, what=f"not {kind}: no valid record in it", kept="nothing", lost=_bytes(damage))]
    kept = f"{records} {'record' if records == 1 else 'records'}"
    told = sorted(damage)
    problems = [
        Problem(
            path=path,
            offset=d.start,
            what=d.what,
            kept=f"{kept} {_where(d, size)} it",
            lost=_bytes([d]),
        )
        for d in told[:MOST_TOLD]
    ]
    if more := told[MOST_TOLD:]:
        what = f"{len(more)} more corrupt stretches after this one"
        problems.append(Problem(path=path, offset=more[0].start, what=what, kept=kept, lost=_bytes(more)))
    return problems


def _where(damage: Damage, size: int) -> str:
    """On which side of the damage the other records stand."""
    if damage.cut or damage.stop >= size:
        return "before"
    return "around" if damage.start else "after"


def damage_in(data: bytes, start: int, stop: int, cut: bool = False) -> Damage:
    """The stretch data[start:stop] as damage."""
    zeros = stop - start - len(data[start:stop].rstrip(b"\0"))
    return Damage(start, stop, cut, zeros=zeros >= HOLE and zeros * 2 > stop - start)


def _bytes(damage: list[Damage]) -> str:
    return f"{sum(d.stop - d.start for d in damage)} bytes"
