"""Kaldi's nnet3: sentences of the training programs, and the lines of the scripts that start them."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value


@dialect
class Kaldi(Dialect):
    """``Average objective function for 'output' for minibatches 0-99 is -0.34 over 640000 frames.``.

    Format: nnet3/nnet-training.cc, PrintStatsForThisPhase and PrintTotalStats; steps/nnet3/train_dnn.py prints ``Iter:
    10/2495    Epoch: 0.02/4.0 (0.4% complete)    lr: 0.000900``. Outputs other than the main one are named after the
    measure; the step of a program's own log is the last minibatch of the phase. The objective is a log-probability,
    which rises: its tag is Kaldi's own word ``objf``, not one for a loss.
    """

    name = "kaldi"
    priority = 15
    needles: ClassVar[tuple[str, ...]] = ("bjective function", "verage log-", "Iter: ")
    _sentence = re.compile(
        r"(?P<measure>(?:Overall )?[Aa]verage (?:objective function|log-\w{1,20}))(?: per frame)?"
        r" for '(?P<output>[\w.\-]{1,60})'(?: for minibatches \d{1,12}-(?P<step>\d{1,12}))?"
        r" is (?P<value>[-+]?(?:\d{1,12}(?:\.\d{1,12})?(?:[eE][-+]?\d{1,3})?|nan|inf))"
    )
    _iteration = re.compile(
        r"Iter: (?P<step>\d{1,9})(?:/(?P<total>\d{1,9}))? {1,12}"
        r"Epoch: (?P<epoch>\d{1,6}\.\d{1,4})/(?P<epochs>\d{1,6}(?:\.\d{1,4})?) \([^)]{1,30}\)"
        r"(?: {1,12}lr: (?P<lr>[\d.]{1,16}(?:e-?\d{1,3})?))?"
    )

    def parse(self, row: Row) -> Record | None:
        if match := self._iteration.match(row.text):
            values = [Value("lr", float(match["lr"]), *match.span("lr"))] if match["lr"] else []
            return Record(values, step=float(match["step"]), level=Trust.ITERATION, at={"step": match.span("step")})
        match = self._sentence.search(row.text)
        if match is None:
            return None
        measure = match["measure"].replace("objective function", "objf")
        name = measure if match["output"] == "output" else f"{measure}/{match['output']}"
        record = Record([Value(name, float(match["value"]), *match.span("value"))])
        if match["step"]:
            record.step, record.level = float(match["step"]), Trust.STEP
            record.at["step"] = match.span("step")
        return record
