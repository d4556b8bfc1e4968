"""A validation loss that rises while the training loss falls."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.overfitting import Overfitting
from tests.diagnoses.cases import from_, grow, quiet, tells


@tells(Overfitting, root="overfitting")
def a_validation_loss_that_rises(course):
    return course(val_loss=from_(20, lambda x: x * (1 + 0.08 * np.arange(len(x)))))


@quiet(Overfitting)
def both_losses_rise(course):
    return course(loss=grow(200, 50), val_loss=from_(20, lambda x: x * (1 + 0.08 * np.arange(len(x)))))
