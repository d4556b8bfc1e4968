"""A loss that diverges without another cause in the log."""

from __future__ import annotations

from postmortem.diagnoses.divergence import Divergence
from tests.diagnoses.cases import RATE_RAMP, grow, quiet, tells


@tells(Divergence, name="diverged", root="divergence")
def a_loss_that_climbs(course):
    return course(loss=grow(200, 50))


@quiet(Divergence)
def the_learning_rate_rose(course):
    """If the learning rate explains the failure, it is the diagnosis."""
    return course(lr=RATE_RAMP, loss=grow(200, 25))
