"""A loss that stops falling too early."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.loss_plateau import LossPlateau
from tests.detectors.cases import N, fires, noise, quiet


@fires(LossPlateau, step=0)
def a_loss_that_never_moves(base):
    return {"loss": 2.3 * noise(0.01)}


@quiet(LossPlateau)
def a_loss_that_has_converged(base):
    """A loss that fell to a hundredth and stays there is done."""
    return {"loss": (0.02 + 2 * np.exp(-np.arange(N) / 60)) * noise()}
