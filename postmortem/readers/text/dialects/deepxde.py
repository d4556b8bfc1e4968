"""DeepXDE: the losses of a physics-informed network, one list per column."""

from __future__ import annotations

import re
from typing import ClassVar

from postmortem.readers.text.dialects import Dialect, dialect
from postmortem.readers.text.records.record import Record, Row, Trust, Value
from postmortem.readers.text.records.tokens import NONFINITE, number

_LIST = rf"\[((?:(?:[-+]?\d\.\d{{2}}e[-+]\d{{2,3}}|{NONFINITE})(?:, |(?=\])))*)\]"


@dialect
class DeepXDE(Dialect):
    """``1000      [1.50e+00, 5.00e-01]    [1.49e+00, 5.01e-01]    [2.1e-02]`` below ``Step  Train loss  Test loss …``.

    Format: `TrainingDisplay` in deepxde/display.py. A list holds one number per term (equation, boundary condition,
    initial condition), already multiplied by its weight. The loss that is minimised is their sum, which is not printed:
    it is the value of ``train loss`` and ``test loss``, and the terms are ``train loss/1``, ``train loss/2``, … The
    summary at the end (``Best model at step 20000:``) repeats a row that was printed, with rounded sums, and is passed
    over.
    """

    name = "deepxde"
    priority = 17
    needles: ClassVar[tuple[str, ...]] = (
        "Step      Train loss",
        "Best model at step ",
        "  train loss: ",
        "  test loss: ",
        "  test metric: ",
        "e+",
        "e-",
        "nan",
        "inf",
    )
    content: ClassVar[re.Pattern[str] | None] = re.compile(r"  (?:train loss|test loss|test metric): |Best model at ")
    _row = re.compile(rf"\s*+(?P<step>\d{{1,12}})\s++{_LIST}\s++{_LIST}\s++{_LIST}\s*$")
    _header = re.compile(r"Step\s{2,}Train loss\s{2,}Test loss\s{2,}Test metric\s*$")
    _best = re.compile(r"Best model at step \d{1,12}:\s*$")
    _of_best = re.compile(r"  (?:train loss|test loss|test metric): ")

    def __init__(self) -> None:
        self.summaries: set[int] = set()
        """The ranks that are in the lines below ``Best model at step``."""

    def parse(self, row: Row) -> Record | None:
        if self._best.match(row.text):
            self.summaries.add(row.rank)
            return Record()
        if row.rank in self.summaries and self._of_best.match(row.text):
            return Record()
        if self._header.match(row.text):
            return Record()
        match = self._row.match(row.text)
        if match is None:
            return None
        self.summaries.discard(row.rank)
        train, test, metrics = (
            [number(cell) for cell in match[i].split(", ")] if match[i] else [] for i in range(2, 5)
        )
        values = [*_with_sum("train loss", train), *_with_sum("test loss", test)]
        several = len(metrics) > 1
        values += [Value(f"test metric/{i}" if several else "test metric", m) for i, m in enumerate(metrics, 1)]
        step = float(match["step"])
        # sums are printed nowhere, so no other row can be read by the places of the numbers in this one
        return Record(values, step=step, level=Trust.ITERATION, at={"step": match.span("step")}, once=True)


def _with_sum(name: str, terms: list[float]) -> list[Value]:
    """The sum of the terms under `name`, and each term if there are several."""
    parts = [Value(f"{name}/{i}", term) for i, term in enumerate(terms, 1)] if len(terms) > 1 else []
    return [Value(name, sum(terms)), *parts] if terms else []
