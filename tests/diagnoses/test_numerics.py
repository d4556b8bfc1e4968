"""An operation that left its range."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.numerics import Numerics
from tests.diagnoses.cases import NAN_FROM_200, from_, quiet, tells


@tells(Numerics, root="nonfinite-gradient", step=200)
def a_gradient_that_is_nan_beside_a_finite_loss(course):
    return course(grad_norm=from_(200, np.nan))


@quiet(Numerics)
def a_batch_that_broke_the_loss(course):
    return course(**NAN_FROM_200)
