"""What postmortem prints into the output of a training is not read as the training's own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from postmortem.core.own_output import beside_a_training
from postmortem.core.reading import Reading
from postmortem.core.skipped import Skip
from postmortem.readers.text import read_text

REPORT = """
Watch of /runs/a, step 20, by `python train.py` (9.5 s)

Culprit: forward-op
  operator div, loss 7.5 at step 3, ZeroDivisionError: division by zero
  >     7 |     loss = model(x) / 0  # lr: 0.5
step 900 loss 1.25
RuntimeError: CUDA error: an illegal memory access was encountered
"""
ANSWER = json.dumps({"schema_version": 1, "step": 3, "fidelity": {"loss": 7.5}, "culprit": {"line": 7}}, indent=2)


def log(between: str, steps: range = range(40)) -> str:
    """A training's output with something in its middle."""
    lines = [f"step {step} loss {2.0 - step / 64}\n" for step in steps]
    return "".join([*lines[:21], between, *lines[21:]])


def points_of(reading: Reading) -> list[tuple[str, int, float]]:
    """(tag, step, value) of all points."""
    p = reading.points
    return [(p.tags[c], int(s), float(v)) for c, s, v in zip(p.code, p.step, p.value, strict=True)]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "between",
    [
        beside_a_training(REPORT, io.StringIO()) + "\n",
        f"{ANSWER}\n",
        " 45%|####      | 9/20 [00:01<00:02]postmortem: culprit: train.py:7 (div), step 3, loss 7.5\n",
        "[rank1]: postmortem: Watch of step 7 loss 3.5\n",
    ],
    ids=["text", "json", "after a bar", "of a rank"],
)
def test_a_report_in_a_log(tmp_path: Path, between: str, fast: bool) -> None:
    """It gives no point and no event, wherever it begins in a line; the lines are counted, and those of the training
    keep their numbers."""
    path = tmp_path / "train.log"
    path.write_text(log(between))
    reading, alone = read_text(path, fast=fast), tmp_path / "alone.log"
    alone.write_text(log(""))
    assert points_of(reading) == points_of(read_text(alone, fast=fast))
    assert reading.events == []
    assert reading.skipped[Skip.OWN] == sum(1 for line in between.splitlines() if line)


def test_a_training_that_speaks_of_a_postmortem(tmp_path: Path) -> None:
    """The word alone is no mark."""
    path = tmp_path / "train.log"
    path.write_text(log("postmortem step 20.5 loss 1.7\n{\n  not an answer\n}\n"))
    assert Skip.OWN not in read_text(path).skipped


def test_a_terminal_gets_no_marks() -> None:
    """Nobody mines it."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert beside_a_training(REPORT, Terminal()) == REPORT
