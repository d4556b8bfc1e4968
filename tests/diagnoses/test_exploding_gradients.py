"""Gradients that explode and take the loss with them."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.exploding_gradients import ExplodingGradients
from tests.diagnoses.cases import at_, from_, grow, quiet, tells


@tells(ExplodingGradients, root="gradient-explosion")
def a_norm_that_climbs_before_the_loss(course):
    return course(grad_norm=grow(200, 15), loss=grow(260, 30))


@quiet(ExplodingGradients)
def one_spike_that_comes_back(course):
    return course(grad_norm=at_(200, 40))


def test_a_nan_right_after_a_huge_gradient_norm_is_an_explosion(story, course):
    """The row before the NaN shows the blow-up, which a single row is enough for."""

    def explode(x):
        x[199] = 1e14
        x[200:] = np.nan
        return x

    told = story(course(loss=from_(200, np.nan), grad_norm=explode)).diagnosis
    assert (told.name, told.strength) == ("exploding-gradients", "likely")
    assert "to 1e+14 at step 199" in told.summary
