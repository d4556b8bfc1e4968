"""One batch that made a stable training fail."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.bad_batch import BadBatch
from tests.diagnoses.cases import NAN_FROM_200, from_, grow, quiet, tells


@tells(BadBatch, root="nan-onset", step=200)
def a_loss_that_is_nan_out_of_a_calm_course(course):
    return course(**NAN_FROM_200)


@quiet(BadBatch)
def a_loss_that_climbed_before_it_was_nan(course):
    """A divergence over a hundred steps is not caused by one batch."""

    def climb(x):
        return from_(300, np.nan)(grow(200, 25)(x))

    return course(loss=climb, grad_norm=from_(300, np.nan))
