"""Reads ``.tally`` files."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postmortem.plugins import PointsBuilder, Problem, Reading, reader

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"#tally 1\n"


@reader
class Tally:
    """Tally files: the line ``#tally 1``, then a line ``step;name;value`` for each number."""

    kind: ClassVar[str] = "tally"
    priority: ClassVar[int] = 25

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file that begins with the magic line."""
        return head.startswith(MAGIC)

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads the whole file; a line of another form is a Problem."""
        reading = Reading(source=Tally.kind, path=str(path))
        points = PointsBuilder()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if line.startswith("#") or not line:
                continue
            try:
                step, name, value = line.split(";")
                points.extend(name, [int(step)], [float(value)])
            except ValueError:  # damage is reported, never raised
                reading.problems.append(
                    Problem(path=str(path), line=number, what="not step;name;value", lost="the line")
                )
        reading.points = points.build()
        return reading
