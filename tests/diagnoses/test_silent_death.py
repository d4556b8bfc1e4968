"""A log that stops and does not say why."""

from __future__ import annotations

from postmortem.diagnoses.silent_death import SilentDeath
from tests.diagnoses.cases import NAN_FROM_200, quiet, tells


@tells(SilentDeath, root="silent-death", step=399, config={"max_steps": 9000})
def a_log_that_stops_at_step_400_of_9000(course):
    return course()


@quiet(SilentDeath, config={"max_steps": 9000})
def the_loss_was_nan_before(course):
    """A run that failed gets the diagnosis of its failure, even if the log stops as well."""
    return course(**NAN_FROM_200)
