"""Gradient boosting: what early stopping prints again of an earlier round."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row


@dialect
class BestIteration(Dialect):
    """``Early stopping, best iteration is:`` and below it ``[85]  valid's rmse: 0.91``: a past round, no new one.

    LightGBM and XGBoost (``Stopping. Best iteration:``) print the best round again when they stop. Read as a row of the
    training it would be a counter that goes back.
    """

    name = "best iteration"
    priority = 11
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"\[\d{1,9}\]\t|[^\n]{0,80}[Bb]est iteration")
    _head = re.compile(r"(?:^|[ .,])best iteration(?: is)?:\s*$", re.IGNORECASE)
    _round = re.compile(r"\[\d{1,9}\]\t")

    def __init__(self) -> None:
        self.best: dict[int, int] = {}
        """The line of the sentence, of each rank."""

    def sniff(self, sample: str) -> bool:
        return self._round.search(sample) is not None

    def parse(self, row: Row) -> Record | None:
        if self._head.search(row.text):
            self.best[row.rank] = row.line
            return Record()
        if self.best.get(row.rank, -1) + 1 != row.line or self._round.match(row.text) is None:
            return None
        del self.best[row.rank]
        return Record()
