"""Saved weights that cannot be opened."""

from __future__ import annotations

from postmortem.core.model import Checkpoint
from postmortem.detectors.checkpoint_unreadable import CheckpointUnreadable
from tests.detectors.cases import fires, quiet


@fires(
    CheckpointUnreadable,
    step=200,
    checkpoints=[Checkpoint(path="runs/a/step-200.pt", step=200, problem="the file is cut")],
)
def a_truncated_checkpoint(base):
    return base


@quiet(
    CheckpointUnreadable,
    checkpoints=[Checkpoint(path="runs/a/step-200.pt", step=200, finite=False, nonfinite=("head.weight",))],
)
def weights_with_nan(base):
    """A file that opens is readable, whatever its values: that is checkpoint-nonfinite."""
    return base
