"""A loss without a value while the training goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import postmortem
from postmortem.diagnoses.blank_values import UnwrittenValues
from tests.diagnoses.cases import NAN_FROM_200, T, quiet, tells

if TYPE_CHECKING:
    from pathlib import Path


@tells(UnwrittenValues, root="blank-values", step=200)
def a_loss_that_is_no_longer_logged(course):
    tags = course()
    return tags | {"loss": (T[:200], tags["loss"][:200])}


@quiet(UnwrittenValues)
def a_loss_that_is_written_as_nan(course):
    """It is known to be NaN: its own causes are asked."""
    return course(**NAN_FROM_200)


@pytest.mark.parametrize(("finite", "strength"), [(False, "likely"), (True, "possible")])
def test_what_is_logged_beside_it_decides(tmp_path: Path, finite: bool, strength: str) -> None:
    """Nulls to the end are likely NaN; a gradient norm that stays finite speaks against it."""
    with (tmp_path / "metrics.jsonl").open("w") as log:
        for i in range(200):
            row = {"step": i, "loss": 0.3 + 1 / (1 + i / 10), "grad_norm": 1 + i % 7 / 10, "lr": 1e-3}
            gone = ("loss",) if finite else ("loss", "grad_norm")
            log.write(json.dumps(row | (dict.fromkeys(gone) if i >= 120 else {})) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    told = run.diagnosis
    assert told is not None
    assert (told.name, told.strength, told.last_good_step) == ("unwritten-values", strength, 119)
    assert any("postmortem checkpoints" in action for action in told.next)
    assert bool(told.evidence_against) is finite
    assert np.all([f.because_of for f in run.findings[1:] if f.name == "blank-values"])
