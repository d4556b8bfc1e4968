"""Gradients that explode and take the loss with them."""

from __future__ import annotations

from postmortem.diagnoses.exploding_gradients import ExplodingGradients
from tests.diagnoses.cases import at_, grow, quiet, tells


@tells(ExplodingGradients, root="gradient-explosion")
def a_norm_that_climbs_before_the_loss(course):
    return course(grad_norm=grow(200, 15), loss=grow(260, 30))


@quiet(ExplodingGradients)
def one_spike_that_comes_back(course):
    return course(grad_norm=at_(200, 40))
