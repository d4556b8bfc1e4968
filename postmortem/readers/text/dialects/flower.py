"""The server of a federated training with Flower."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number


@dialect
class Flower(Dialect):
    """``fit progress: (3, 0.516, {'accuracy': 0.80}, 12.4)``: the round, the loss of the whole model, metrics, seconds.

    Format: flwr/server/server.py. The server measures on its own data after each round, so the loss is one of an
    evaluation; before the first round it prints ``initial parameters (loss, other metrics): 2.30, {…}``.
    """

    name = "flower"
    priority = 27
    needles: ClassVar[tuple[str, ...]] = ("fit progress: (", "initial parameters (loss")
    _pattern = re.compile(
        r"(?:fit progress: \((?P<round>\d{1,9}), |initial parameters \(loss, other metrics\): )"
        rf"(?P<loss>{NUMBER}|{NONFINITE}), (?P<metrics>\{{)"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._pattern.search(row.text)
        if match is None:
            return None
        record = Record(step=float(match["round"] or 0), level=Trust.STEP)
        if match["round"]:
            record.at["step"] = match.span("round")
        record.values.append(Value("centralized eval loss", number(match["loss"]), *match.span("loss")))
        metrics = mine(row.text, match.start("metrics"), demand=False)
        record.values += metrics.values if metrics is not None else []
        return record
