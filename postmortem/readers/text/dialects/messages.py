"""Sentences in which a program reports something about itself: they are events, not metrics."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row
from postmortem.signatures import CATALOGUE

_SENTENCES = tuple(
    CATALOGUE[kind] for kind in ("update-skipped", "large-gradient", "no-gradient", "gpu-mem-estimate", "nan-report")
)
_MEASURED = re.compile(r"\b[A-Za-z_]\w{0,60} ?[:=] ?[-+]?(?:\d|nan\b|inf\b)", re.IGNORECASE)


@dialect
class Messages(Dialect):
    """``non-finite loss nan, skipping batch 222``: the numbers of such a sentence are no points of a metric.

    A report of NaN that also prints values by name, ``NaN loss at step 12: loss=nan lr=0.001``, is read like any row.
    """

    name = "messages"
    priority = 12
    # parts of the anchors of these signatures, which are too many to look for in every row
    needles: ClassVar[tuple[str, ...]] = (
        *("nan", "NaN", "NAN", "Nan", "inf", "Inf", "finite", "Finite", " non", "umber", "turned to"),
        *("kip", "KIP", " grad", " GRAD", "rad = None", "rad: None", "is None", "radient explo", "RADIENT EXPLO"),
        *("etected", "DETECTED", "equired", "EQUIRED", "stimated", "STIMATED", "UPDATED", "updated"),
        *("iverged with loss", "ncountered"),
    )

    def parse(self, row: Row) -> Record | None:
        signature = next((s for s in _SENTENCES if s.match(row.text) is not None), None)
        if signature is None or (signature.id == "nan-report" and _MEASURED.search(row.text) is not None):
            return None
        return Record()
