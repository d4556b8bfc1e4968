"""A gradient that fades while the loss is high."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.gradient_vanishing import GradientVanishing
from tests.detectors.cases import N, fires, noise, quiet, scale, spoiled


@fires(GradientVanishing)
def a_gradient_norm_that_fades(base):
    return spoiled(base, "grad_norm", scale(slice(200, None), np.exp(-np.arange(200) / 10)))


@quiet(GradientVanishing)
def the_task_is_solved(base):
    """The loss falls with the gradient: nothing is left to learn."""
    fading = np.exp(-np.arange(N) / 20)
    return base | {"grad_norm": base["grad_norm"] * fading, "train/loss": 2 * fading * noise()}
