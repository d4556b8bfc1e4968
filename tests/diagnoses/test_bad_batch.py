"""One batch that made a stable training fail."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.bad_batch import BadBatch
from tests.diagnoses.cases import NAN_FROM_200, from_, grow, quiet, tells


@tells(BadBatch, name="bad-batch-or-numerics", root="nan-onset", step=200)
def a_loss_that_is_nan_out_of_a_calm_course(course):
    return course(**NAN_FROM_200)


@quiet(BadBatch)
def a_loss_that_climbed_before_it_was_nan(course):
    """A divergence over a hundred steps is not caused by one batch."""

    def climb(x):
        return from_(300, np.nan)(grow(200, 25)(x))

    return course(loss=climb, grad_norm=from_(300, np.nan))


@quiet(BadBatch)
def a_gradient_norm_far_above_its_level_one_row_before(course):
    """A gradient norm of 1e14 right before the NaN is an explosion."""

    def explode(x):
        x[199] = 1e14
        x[200:] = np.nan
        return x

    return course(loss=from_(200, np.nan), grad_norm=explode)


def test_a_nan_out_of_calm_has_two_explanations(story, course):
    """A log does not tell faulty samples from an operation at its numeric limit: both are named, as possible."""
    told = story(course(**NAN_FROM_200)).diagnosis
    assert told.strength == "possible"
    assert "Either the batch of step 200 holds faulty samples, or an operation" in told.summary
    assert told.next[0].startswith("check the samples of step 200")
    assert told.next[1].startswith("if the samples are in order: look for sqrt, norm")
