"""Evaluations whose rows do not say so themselves: the line above them does, or a sentence of the library."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.core.roles import is_held_out
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Trust

_REACH = 5
"""Lines below a heading within which its first row follows."""


@dialect
class Estimator(Dialect):
    """``Saving dict for global step 1000: accuracy = 0.97, global_step = 1000, loss = 0.09``: an evaluation.

    Format: tensorflow_estimator/python/estimator/estimator.py. The training's own rows are ``loss = 0.1, step = 900``,
    so the names alone do not tell the two apart.
    """

    name = "tensorflow estimator"
    priority = 20
    needles: ClassVar[tuple[str, ...]] = ("Saving dict for global step",)
    _head = re.compile(r"Saving dict for global step (?P<step>\d{1,15}): ")

    def parse(self, row: Row) -> Record | None:
        match = self._head.search(row.text)
        if match is None:
            return None
        record = mine(row.text, match.end(), demand=False) or Record()
        record.step, record.level, record.split = float(match["step"]), Trust.GLOBAL, "eval"
        record.at = {"step": match.span("step")}
        record.n = record.total = record.other = None
        return record


@dialect
class EvaluationPass(Dialect):
    """``Eval begin...``, and below it rows that count on their own: ``step 10/16 - loss: 0.41 - acc: 0.88``.

    Paddle's `Model.fit` prints so (python/paddle/hapi/callbacks.py), and loops that print ``Validating...``. A pass
    ends with its last batch, with a line that names an epoch or the training, or where the counter starts again. Its
    rows are intermediate ones: the last one counts. The heading does not count if the counter below it goes on with
    that of the training, or if rows of the same total come only later: those are the next epoch.
    """

    name = "evaluation pass"
    priority = 27
    _heading = re.compile(
        r"\W{0,12}(?:(?:start|begin|runn?)(?:ing)? (?:the )?)?(?i:(?P<word>eval|val|valid|test|dev)\w{0,7})"
        r"(?: (?:begins?|starts?|started|phase|loop|set|pass|epoch|model|the model))?\W{0,12}$",
        re.IGNORECASE,
    )
    _end = re.compile(r"\W{0,12}(?:(?:eval|val|test)\w{0,7} samples: \d|epoch\b|train(?:ing)?\b)", re.IGNORECASE)
    _counted = re.compile(r"[^\d\n]{0,60}\d{1,12}\s{0,4}/\s{0,4}\d{1,12}(?!\d)")
    content: ClassVar[re.Pattern[str] | None] = re.compile(
        rf"{_counted.pattern}|{_heading.pattern}|{_end.pattern}", re.I
    )

    def __init__(self) -> None:
        self.headings: dict[int, tuple[int, str]] = {}
        """Line and word of the heading above the rows that come, of each rank."""
        self.trained: dict[int, tuple[float, float]] = {}
        """Counter and total of the last row of the training, of each rank."""
        self.evaluated: dict[int, tuple[float, float]] = {}
        """The same of the last row of an evaluation, until the next one begins."""
        self.last: dict[int, float] = {}
        """The counter of the last row of the pass before: a pass need not print its last batch."""

    def sniff(self, sample: str) -> bool:
        lines = sample.splitlines()
        return ("step " in sample and " - loss: " in sample) or any(map(self._heading.match, lines))

    def parse(self, row: Row) -> Record | None:
        if len(row.text) < 60 and (heading := self._heading.match(row.text)):
            self.headings[row.rank] = row.line, heading["word"]
            if row.rank in self.evaluated:
                self.last[row.rank] = self.evaluated.pop(row.rank)[0]
            return None
        if self._end.match(row.text):
            self.headings.pop(row.rank, None)
            return None
        record = mine(row.text) if self._counted.match(row.text) else None
        if record is None or record.n is None or record.total is None or not record.values:
            return None
        if row.rank not in self.headings or not self._belongs(row, record.n, record.total):
            self.headings.pop(row.rank, None)
            self.trained[row.rank] = record.n, record.total
            return None
        if record.epoch is not None or any(is_held_out(value.tag) for value in record.values):
            return None
        self.evaluated[row.rank] = record.n, record.total
        if record.n < record.total and record.n != self.last.get(row.rank):
            record.values = []
        record.evaluation, record.split, record.once = True, self.headings[row.rank][1], True
        record.n = record.total = record.step = None
        return record

    def _belongs(self, row: Row, n: float, total: float) -> bool:
        """Whether a row with this counter is one of the pass under the heading."""
        if row.rank in self.evaluated:
            before, length = self.evaluated[row.rank]
            return before < n and length == total
        line = self.headings[row.rank][0]
        done, length = self.trained.get(row.rank, (0.0, 0.0))
        if row.line - line > _REACH or (length == total and n > done):
            return False
        return length != total or row.line == line + 1
