"""WeNet: speech recognition with an epoch and a batch number in each row, and a sum of each validation."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust, Value


@dialect
class Wenet(Dialect):
    """``TRAIN | steps/sec 3.2| Batch 0/100 loss 99.3 … rank 0``, ``CV Batch …``, ``Epoch 0 CV info cv_loss 48.3``.

    Format: wenet/utils/executor.py and train_utils.py (before version 3 without steps/sec), also WeKws.
    ``Batch 3/100`` is batch 100 of epoch 3; both count from 0, and no row tells how many batches an epoch has. The rows
    of a validation are intermediate ones of one pass, whose result stands in ``CV info``.
    """

    name = "wenet"
    priority = 16
    needles: ClassVar[tuple[str, ...]] = ("Batch ", " info ")
    _row = re.compile(
        r"(?:(?P<split>TRAIN|CV) (?:\| )?)?(?:steps/sec (?P<rate>\d{1,9}(?:\.\d{1,9})?)\| )?"
        r"Batch (?P<epoch>\d{1,6})/(?P<n>\d{1,9})(?= )"
    )
    _whole = re.compile(r"Epoch (?P<epoch>\d{1,6})(?: Step \d{1,12})? CV info ")

    def parse(self, row: Row) -> Record | None:
        if whole := self._whole.match(row.text):
            record = mine(row.text, whole.end(), demand=False) or Record()
            record.evaluation, record.split = True, "CV"
            record.epoch, record.at["epoch"] = float(whole["epoch"]), whole.span("epoch")
            return record
        match = self._row.match(row.text)
        split = (match["split"] or row.prefix.logger) if match is not None else None  # "TRAIN | " looks like a logger
        if match is None or split not in ("TRAIN", "CV"):
            return None
        if split == "CV":
            return Record(evaluation=True, split="CV")
        record = mine(row.text, match.end(), demand=False) or Record()
        if match["rate"]:
            record.values.append(Value("steps/sec", float(match["rate"]), *match.span("rate")))
        record.level, record.base = Trust.LOCAL, 0
        record.epoch, record.n = float(match["epoch"]), float(match["n"])
        record.at |= {"epoch": match.span("epoch"), "n": match.span("n")}
        return record
