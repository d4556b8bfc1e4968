"""A validation loss that turns while the training loss falls."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.overfitting import Overfitting
from tests.detectors.cases import N, fires, quiet


@fires(Overfitting, step=129)
def a_validation_loss_that_turns(base):
    return base | {"val/loss": (np.arange(9, N, 10), 0.5 + np.abs(np.arange(40) - 12) * 0.05)}


@quiet(Overfitting)
def both_losses_turn(base):
    """Where the training loss rises too, it is a divergence."""
    rise = np.maximum(1, np.exp((np.arange(N) - 129) / 100))
    return base | {
        "train/loss": base["train/loss"] * rise,
        "val/loss": (np.arange(9, N, 10), base["val/loss"][1] * rise[9::10]),
    }
