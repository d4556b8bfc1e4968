"""Caffe: the outputs of the training and the test net, one per line."""

from __future__ import annotations

import math
import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number


@dialect
class Caffe(Dialect):
    """``    Test net output #0: loss = 0.0147 (* 1 = 0.0147 loss)`` below ``Iteration 500, Testing net (#0)``.

    Format: caffe/src/caffe/solver.cpp. Outputs of the test net get the word Test before their name. The training's
    ``loss`` is left to the line ``Iteration 100, loss = 0.5`` above, which is its average over `average_loss`
    iterations: both under one name would be two points at one step.
    """

    name = "caffe"
    priority = 16
    needles: ClassVar[tuple[str, ...]] = (" net output #",)
    _output = re.compile(
        rf"\s*+(?P<net>Train|Test) net output #\d{{1,4}}: (?P<name>[\w./\-@]{{1,80}}) = (?P<value>{NUMBER}|{NONFINITE})"
        r"(?: \(\* [^()]{1,60}\))?\s*$"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._output.match(row.text)
        if match is None:
            return None
        name = f"Test {match['name']}" if match["net"] == "Test" else match["name"]
        value = Value(name, number(match["value"]), *match.span("value"))
        return Record() if name == "loss" and math.isfinite(value.number) else Record([value])
