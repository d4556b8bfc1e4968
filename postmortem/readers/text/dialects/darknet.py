"""Darknet: the row of an iteration, and those of its layers that find objects."""

from __future__ import annotations

import re
from math import isfinite
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number


@dialect
class Darknet(Dialect):
    """``12: 2009.49, 1271.08 avg, 0.000000 rate, 0.19 seconds, 768 images``: iteration, loss, its mean, learning rate.

    Format: examples/detector.c and classifier.c (``12, 0.004: 6.9, …``: the epoch in front of the colon), in the fork
    with ``avg loss``. ``Region 82 Avg IOU: -nan, Class: -nan, …, count: 0`` comes before it from every layer that finds
    objects: without an object in the batch its means are 0/0, which says nothing, so those are left out.
    """

    name = "darknet"
    priority = 15
    needles: ClassVar[tuple[str, ...]] = (" avg, ", " avg loss, ", "Region ")
    _value = rf"(?:{NUMBER}|{NONFINITE})"
    _row = re.compile(
        rf"\s*(?P<step>\d{{1,12}})(?:, (?P<epoch>{NUMBER}))?: (?P<loss>{_value}), "
        rf"(?P<mean>{_value}) avg(?: loss)?, (?P<rate>{_value}) rate, (?P<time>{_value}) seconds"
    )
    _layer = re.compile(r"(?:.{0,200}?\) )?Region (?P<layer>\d{1,4}) Avg ?[I(]")
    _empty = re.compile(r"count: 0\b")

    def parse(self, row: Row) -> Record | None:
        match = self._row.match(row.text)
        if match is None:
            return self._of_layer(row.text)
        tags = (("loss", "loss"), ("avg loss", "mean"), ("rate", "rate"), ("seconds", "time"))
        record = Record([Value(tag, number(match[part]), *match.span(part)) for tag, part in tags])
        record.step, record.level, record.at["step"] = float(match["step"]), Trust.ITERATION, match.span("step")
        return record

    def _of_layer(self, text: str) -> Record | None:
        """The means of one layer; {} of a row without objects that has no finite one."""
        match = self._layer.match(text)
        if match is None:
            return None
        record = mine(text, match.end("layer"), demand=False) or Record()
        is_empty = self._empty.search(text) is not None
        record.values = [
            value._replace(tag=f"Region {match['layer']}/{value.tag}")
            for value in record.values
            if isfinite(value.number) or not is_empty
        ]
        return Record(record.values, once=True)
