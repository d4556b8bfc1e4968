"""Gradients that fade while the loss is high."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.vanishing_gradients import VanishingGradients
from tests.diagnoses.cases import from_, grow, quiet, tells


@tells(VanishingGradients, root="gradient-vanishing")
def a_norm_that_fades(course):
    return course(grad_norm=from_(200, lambda x: x * np.exp(-np.arange(len(x)) / 12)))


@quiet(VanishingGradients)
def a_loss_that_diverges_beside_it(course):
    """An error is the diagnosis, not a warning in the same run."""
    return course(grad_norm=from_(200, lambda x: x * np.exp(-np.arange(len(x)) / 12)), loss=grow(200, 50))
