"""Rows of a step, one name and its value: ``0 train 11.22``."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_FEWEST = 8
"""Rows that make a log; fewer may be anything."""
_MOST_NAMES = 12
"""A listing numbers its things and names each once; a log repeats the names of its metrics."""


@dialect
class NamedRows(Dialect):
    """``250 val 4.21``, ``250 hella 0.26``, ``251 train 4.35``, as build-nanogpt writes its log: no sign, no header.

    Only in a log that holds hardly anything else, whose first numbers do not fall but for restarts and whose names
    return.
    """

    name = "step, name, value"
    priority = 57
    _row = re.compile(rf"(?P<n>\d{{1,12}})\s+(?P<tag>[A-Za-z_][\w/@.\-]{{0,40}})\s+(?P<value>{NUMBER}|{NONFINITE})\s*$")

    def __init__(self) -> None:
        self.found = False

    def sniff(self, sample: str) -> bool:
        lines = [line for line in sample.splitlines() if line.strip()]
        rows = [row for row in map(self._row.match, lines) if row is not None]
        names = Counter(row["tag"] for row in rows)
        counts = [int(row["n"]) for row in rows]
        falls = sum(b < a for a, b in pairwise(counts))
        decimals = sum(re.search(r"[.a-zA-Z]", row["value"]) is not None for row in rows)
        self.found = (
            len(rows) >= max(_FEWEST, 0.9 * len(lines))
            and len(names) <= min(_MOST_NAMES, len(rows) // 3)
            and falls <= 0.02 * len(rows)
            and counts[-1] > counts[0]
            and decimals > 0.5 * len(rows)
        )
        return self.found

    def parse(self, row: Row) -> Record | None:
        match = self._row.match(row.text) if self.found else None
        if match is None:
            return None
        value = Value(match["tag"], number(match["value"]), *match.span("value"))
        return Record([value], step=float(match["n"]), level=Trust.STEP, at={"step": match.span("n")})
