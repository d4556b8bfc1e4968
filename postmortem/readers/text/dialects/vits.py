"""Lists of numbers under a heading that names the epoch: VITS and what was made of it."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_REACH = 3
"""Lines below a heading within which its list follows."""


@dialect
class LossList(Dialect):
    """``Train Epoch: 1 [20%]``, and below it ``[2.51, 3.17, 4.02, 40.2, 200, 0.0002]``: losses, the step, the rate.

    Format: train.py and train_ms.py of VITS, also so-vits-svc, RVC and GPT-SoVITS. Which losses there are differs, and
    no row names them: they are ``loss 1``, ``loss 2`` and so on, in their order.
    """

    name = "loss list"
    priority = 27
    _heading = re.compile(r"Train Epoch: (?P<epoch>\d{1,9}) \[ {0,3}\d{1,3}(?:\.\d{1,3})?%\]")
    _cell = rf"(?:{NUMBER}|{NONFINITE})"
    _list = re.compile(
        rf"\[(?P<losses>{_cell}(?:, {_cell}){{0,30}}), (?P<step>\d{{1,12}}), (?P<rate>\d(?:\.\d++)?(?:e-\d++)?)\]$"
    )
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"Train Epoch: \d|\[[-\d.nai]+,")

    def __init__(self) -> None:
        self.heading: dict[int, tuple[int, float]] = {}
        """Line and epoch of the last heading, of each rank."""

    def sniff(self, sample: str) -> bool:
        return self._heading.search(sample) is not None

    def parse(self, row: Row) -> Record | None:
        if heading := self._heading.match(row.text):
            self.heading[row.rank] = row.line, float(heading["epoch"])
            return None
        line, epoch = self.heading.get(row.rank, (-_REACH, 0.0))
        match = self._list.match(row.text) if 0 < row.line - line <= _REACH else None
        if match is None or float(match["rate"]) > 1:
            return None
        cells = re.finditer(self._cell, match["losses"])
        start = match.start("losses")
        values = [Value(f"loss {i}", number(c[0]), start + c.start(), start + c.end()) for i, c in enumerate(cells, 1)]
        values.append(Value("learning rate", number(match["rate"]), *match.span("rate")))
        record = Record(values, step=float(match["step"]), level=Trust.GLOBAL, epoch=epoch, once=True)
        record.at = {"step": match.span("step")}
        return record
