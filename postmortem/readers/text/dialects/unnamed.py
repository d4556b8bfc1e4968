"""Numbers without a name: ``print(i, loss)``."""

from __future__ import annotations

import re
from itertools import pairwise

from postmortem.core.roles import role_of
from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.step_words import position
from postmortem.readers.text.records.tokens import NONFINITE, NUMBER, number

_FEWEST = 8
"""Rows of a step and a number that make a log; fewer may be anything."""


@dialect
class Unnamed(Dialect):
    """``12 tensor(0.53, grad_fn=<NllLossBackward0>)``, or a log of nothing but rows ``12<TAB>0.53``, ``epoch12 0.53``,
    ``12 0.53 0.81``.

    A tensor with a `grad_fn` that is printed is the loss. Plain numbers count only in a log that holds hardly anything
    else and whose first column rises evenly; what they measure shows in whether they fall. Several in a row are
    numbered.
    """

    name = "unnamed numbers"
    priority = 58
    _tensor = (
        r"(?:tf\.Tensor|tensor|array|np\.float\d+|Array)"
        rf"\(\[?(?P<tensor>{NUMBER}|{NONFINITE})\]?(?P<rest>[^()]{{0,120}})\)"
    )
    _row = re.compile(
        r"[(\[]?(?:(?P<word>(?i:epoch|ep|iter|iteration|step))?[ _:#=]{0,2}(?P<n>\d{1,12})[\])]?(?:\s*[,:;|]\s*|\s+))?"
        rf"(?:{_tensor}|(?P<value>{NUMBER}|{NONFINITE}))[)\]]?\s*$"
    )
    _several = re.compile(
        rf"(?P<n>\d{{1,12}})(?:\s*[,;]\s*|\s+)(?P<values>(?:(?:{NUMBER}|{NONFINITE})(?:\s*[,;]\s*|\s+|$)){{2,12}})$"
    )
    _loss = re.compile(r"grad_fn=<(\w*Loss)\w*>")

    def __init__(self) -> None:
        self.plain = False

    def sniff(self, sample: str) -> bool:
        lines = [line for line in sample.splitlines() if line.strip()]
        rows = [row for row in map(self._plain_row, lines) if row is not None]
        counts = [int(row["n"]) for row in rows]
        gaps = [b - a for a, b in pairwise(counts)]
        usual = max(set(gaps), key=gaps.count, default=0)
        others = [cell for line in lines if self._plain_row(line) is None for cell in re.split(r"[\s,|]+", line)]
        decimals = sum(re.search(r"[.a-zA-Z]", row[0]) is not None for row in rows)
        self.plain = (
            len(rows) >= max(_FEWEST, 0.9 * len(lines)) and usual > 0 and gaps.count(usual) >= 0.8 * len(gaps)
        ) and decimals > 0.9 * len(rows)
        is_header = any(position(cell) or role_of(cell) for cell in others)  # it names the columns
        self.plain = self.plain and not is_header
        return self.plain or "grad_fn=" in sample

    def _plain_row(self, text: str) -> re.Match[str] | None:
        """The match of a row of a step and numbers."""
        match = self._row.match(text)
        return match if match is not None and match["n"] is not None else self._several.match(text)

    def _numbered(self, row: Row) -> Record | None:
        """The record of a row of a step and several numbers."""
        match = self._several.match(row.text)
        if match is None:
            return None
        cells = re.finditer(rf"{NUMBER}|{NONFINITE}", match["values"])
        start = match.start("values")
        values = [
            Value(f"unnamed number {i}", number(c[0]), start + c.start(), start + c.end())
            for i, c in enumerate(cells, 1)
        ]
        return Record(values, step=float(match["n"]), level=Trust.STEP, at={"step": match.span("n")})

    def parse(self, row: Row) -> Record | None:
        if self.plain and (several := self._numbered(row)) is not None:
            return several
        match = self._row.match(row.text)
        has_graph = match is not None and "grad_fn=" in (match["rest"] or "")
        if match is None or not (has_graph or (self.plain and match["n"] is not None)):
            return None
        kind = "tensor" if match["tensor"] else "value"
        loss = self._loss.search(match["rest"] or "")
        tag = loss[1] if loss is not None else "unnamed loss" if has_graph else "unnamed number"
        record = Record([Value(tag, number(match[kind]), *match.span(kind))])
        if match["n"] is not None and (match["word"] or "").lower().startswith("ep"):
            record.epoch, record.at["epoch"] = float(match["n"]), match.span("n")
        elif match["n"] is not None:
            record.step, record.level, record.at["step"] = float(match["n"]), Trust.STEP, match.span("n")
        return record
