"""Steps that go back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.detectors.step_reset import StepReset
from tests.detectors.cases import N, fires, quiet

EVERY = np.r_[0:200, 150:400]


@fires(StepReset, step=150)
def a_resume_fifty_steps_back(base):
    return {"train/loss": (EVERY, np.exp(-EVERY / 100) + 1)}


@quiet(StepReset)
def one_row_out_of_order(base):
    """A row that was written late does not start the run again."""
    steps = np.arange(N)
    steps[[200, 201]] = steps[[201, 200]]
    return {"train/loss": (steps, np.exp(-steps / 100) + 1)}


def curve(start: float, end: float, n: int) -> np.ndarray:
    """A loss that falls from one value to the other."""
    return end + (start - end) * np.exp(-np.arange(n) / (n / 5))


@pytest.mark.parametrize(
    ("attempts", "severity"),
    [
        ([curve(12, 1.6, 100), curve(11.6, 1.8, 200)], "info"),  # a second training, appended
        ([curve(0.2, 0.18, 100), curve(0.005, 0.003, 100), curve(0.28, 0.18, 100)], "info"),  # layer by layer
        ([curve(12, 1.6, 37), curve(11.6, 1.8, 200)], "warning"),  # stopped somewhere and begun again
        ([curve(12, 1.6, 100), curve(1.6, 1.2, 100)], "warning"),  # resumed, but the counter was not
    ],
)
def test_a_complete_training_followed_by_a_new_one(tmp_path: Path, attempts: list[np.ndarray], severity: str) -> None:
    """It is no accident if the one before was complete and the loss begins anew."""
    rows = "".join(f"epoch {i} loss {loss:.6f}\n" for losses in attempts for i, loss in enumerate(losses))
    (tmp_path / "train.log").write_text(rows)
    [run] = postmortem.scan(tmp_path).runs
    assert {f.severity for f in run.findings if f.name == "step-reset"} == {severity}
    assert run.verdict == ("healthy" if severity == "info" else "suspect")
