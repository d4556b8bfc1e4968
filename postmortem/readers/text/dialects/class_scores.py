"""Precision, recall and F1 of each class: conlleval and scikit-learn's classification_report."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Record, Row, Value
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_CELL = rf"(?:{NUMBER}|{NONFINITE})"
_SHARE = r"[01]\.\d{1,16}"
_REACH = 3
"""A row of a table is at most this many lines below the one before; blank lines are between them."""


@dialect
class ConllClass(Dialect):
    """``LOC: precision:  61.97%; recall:  55.07%; FB1:  58.21  123``: the scores of one class, after those of all.

    The tags begin with the class, so the series without one holds only the scores of all classes. The last number is
    how many were found. A heading just above (``evaluate:dev``) names the data, which the tags then begin with.

    Format: conlleval.pl of the CoNLL shared tasks, and its translations to Python.
    """

    name = "conlleval"
    priority = 27
    _of_class = re.compile(
        rf"(?:^\s*+|[-:|\]]\s++|\s\s)(?P<label>[A-Za-z_][^\s:;,=]{{0,60}}):?\s++precision:\s*+(?P<precision>{_CELL})%?;"
        rf"\s*+recall:\s*+(?P<recall>{_CELL})%?;\s*+(?P<f1>F\w*):\s*+(?P<value>{_CELL})%?(?:\s++\d++)?\s*$"
    )
    _of_all = re.compile(r"(?:^\s*+|[-:|\]]\s++)accuracy:\s++[\d.]++%; precision:")
    _heading = re.compile(
        r"(?i)\W{0,6}(?:evaluat|validat|test)(?:e|ing|ion)(?: on)?(?: the)? ?[: ] ?(?P<word>dev|test|valid\w*)\b"
    )
    content: ClassVar[re.Pattern[str] | None] = re.compile(rf"{_heading.pattern}|.*precision:.*recall:", re.I)

    def __init__(self) -> None:
        self.data: dict[int, tuple[int, str]] = {}
        """The last line about these data, and the word for them, by rank."""

    def parse(self, row: Row) -> Record | None:
        if len(row.text) < 60 and (heading := self._heading.match(row.text)):
            self.data[row.rank] = row.line, heading["word"]
            return None
        match = self._of_class.search(row.text)
        record = mine(row.text) if match is None and self._of_all.search(row.text) else None
        if match is not None:
            cells = (("precision", "precision"), ("recall", "recall"), (match["f1"], "value"))
            named = [Value(f"{match['label']} {name}", number(match[k]), *match.span(k)) for name, k in cells]
            record = Record(named)
        line, word = self.data.get(row.rank, (0, ""))
        if record is not None and word and 0 < row.line - line <= _REACH:
            record.evaluation, record.split, record.once = True, word, True
            self.data[row.rank] = row.line, word
        return record


@dialect
class ClassificationReport(Dialect):
    """The table of scikit-learn's `classification_report`: a row for each class, then the averages and the accuracy.

    A row's tags begin with its label: ``cat f1-score``, ``macro avg precision``. The accuracy stands alone. The support
    is how many samples there were and is no metric.

    Format: sklearn.metrics.classification_report; seqeval's has the same columns.
    """

    name = "classification report"
    priority = 27
    _header = re.compile(r"\s*+precision\s++recall\s++f1-score\s++support\s*$")
    _cells = rf"(?P<a>{_SHARE})\s++(?P<b>{_SHARE})\s++(?P<c>{_SHARE})\s++\d++(?:\.0)?\s*$"
    _row = re.compile(rf"\s*+(?P<label>\S(?:.{{0,78}}?\S)?)\s++{_cells}")
    _accuracy = re.compile(rf"\s*+accuracy\s++(?P<value>{_SHARE})\s++\d++(?:\.0)?\s*$")
    content: ClassVar[re.Pattern[str] | None] = re.compile(
        rf"\s*+precision\s++recall|\s*+accuracy\s++{_SHARE}\s++\d|\s*+\S.{{0,80}}?\s(?:{_SHARE}\s++){{3}}\d++(?:\.0)?\s*$"
    )

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        """The line of the last row of a table, by rank."""

    def parse(self, row: Row) -> Record | None:
        if self._header.match(row.text):
            self.last[row.rank] = row.line
            return Record()
        if not 0 < row.line - self.last.get(row.rank, row.line) <= _REACH:
            return None
        match = self._accuracy.match(row.text) or self._row.match(row.text)
        if match is None:
            return None
        self.last[row.rank] = row.line
        if match.re is self._accuracy:
            return Record([Value("accuracy", number(match["value"]), *match.span("value"))])
        cells = (("precision", "a"), ("recall", "b"), ("f1-score", "c"))
        return Record([Value(f"{match['label']} {name}", number(match[k]), *match.span(k)) for name, k in cells])
