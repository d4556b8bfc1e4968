"""A loss that never was a number."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.nan_from_start import NanFromStart
from tests.diagnoses.cases import NAN_FROM_200, quiet, tells


@tells(NanFromStart, root="nan-onset", step=0)
def a_loss_of_nan_only(course):
    return {"loss": np.full(50, np.nan), "lr": np.full(50, 1e-3)}


@quiet(NanFromStart)
def a_loss_that_was_a_number_before(course):
    return course(**NAN_FROM_200)
