"""A NaN that the logger replaced by zero."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.masked_nonfinite import MaskedNonfinite
from tests.detectors.cases import N, fires, put, quiet, spoiled


@fires(MaskedNonfinite, step=200)
def a_loss_that_drops_to_zero(base):
    return spoiled(base, "train/loss", put(slice(200, None), 0.0))


@quiet(MaskedNonfinite)
def a_loss_that_is_solved(base):
    """A loss that falls smoothly to zero got there by learning."""
    loss = np.maximum(0, 2 * np.exp(-np.arange(N) / 30) - 1e-3)
    return base | {"train/loss": loss}
