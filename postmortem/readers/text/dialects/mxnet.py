"""MXNet: rows of batches that name a range, and a sum of each epoch."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust


@dialect
class Mxnet(Dialect):
    """``Epoch[0] Batch [20-40]	Speed: 2011.20 samples/sec``; ``[Epoch 0][Batch 99], Speed: …, loss=1.2``.

    Format: mxnet/callback.py, Speedometer (before 1.3 ``Batch [40]``); the second is that of GluonCV's scripts. Epochs
    and batches count from 0, and no row tells how many batches an epoch has. ``Epoch[0] Validation-accuracy=0.6`` sums
    up the epoch.
    """

    name = "mxnet"
    priority = 16
    needles: ClassVar[tuple[str, ...]] = ("Batch",)
    _row = re.compile(
        r"(?:Epoch\[(?P<epoch>\d{1,9})\] Batch ?\[(?:\d{1,12}-)?(?P<n>\d{1,12})\]"
        r"|\[Epoch (?P<epoch2>\d{1,9})\] ?\[Batch (?P<n2>\d{1,12})(?:/(?P<total>\d{1,12}))?\])"
    )

    def parse(self, row: Row) -> Record | None:
        match = self._row.match(row.text)
        if match is None:
            return None
        record = mine(row.text, match.end(), demand=False) or Record()
        epoch, n = ("epoch", "n") if match["n"] else ("epoch2", "n2")
        record.level, record.base, record.step = Trust.LOCAL, 0, None
        record.epoch, record.n = float(match[epoch]), float(match[n])
        record.at |= {"epoch": match.span(epoch), "n": match.span(n)}
        if match["total"]:
            record.total, record.at["total"] = float(match["total"]), match.span("total")
        return record
