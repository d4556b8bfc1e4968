"""Weights that do not change."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.frozen_model import FrozenModel
from tests.diagnoses.cases import from_, quiet, tells


@tells(FrozenModel, name="no-learning", root=None)
def a_validation_loss_without_a_change(course):
    """Bit-identical, while the training loss is noisy and flat."""
    rng = np.random.default_rng(0)
    return course(
        loss=from_(150, lambda x: 1.0 * np.exp(0.05 * rng.standard_normal(len(x)))), val_loss=from_(15, 1.04321)
    )


@quiet(FrozenModel)
def the_loss_is_nan_at_the_end(course):
    """An error is the diagnosis, not a metric that did not change."""
    return course(loss=from_(200, np.nan), grad_norm=from_(200, np.nan), val_loss=from_(15, 1.04321))
