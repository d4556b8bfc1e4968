"""Saved weights that hold NaN or infinities."""

from __future__ import annotations

from postmortem.core.model import Checkpoint
from postmortem.detectors.checkpoint_nonfinite import CheckpointNonfinite
from tests.detectors.cases import fires, quiet

GOOD = Checkpoint(path="runs/a/step-100.pt", step=100, finite=True)
BAD = Checkpoint(path="runs/a/step-200.pt", step=200, finite=False, nonfinite=("head.weight",))


@fires(CheckpointNonfinite, step=200, checkpoints=[GOOD, BAD])
def weights_with_nan(base):
    return base


@quiet(CheckpointNonfinite, checkpoints=[GOOD, Checkpoint(path="runs/a/step-300.pt", step=300)])
def one_finite_and_one_not_inspected(base):
    """Nothing is concluded about a checkpoint that was not opened."""
    return base
