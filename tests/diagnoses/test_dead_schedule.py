"""A schedule that ended before the training."""

from __future__ import annotations

from postmortem.diagnoses.dead_schedule import DeadSchedule
from tests.diagnoses.cases import from_, quiet, tells


@tells(DeadSchedule, root="lr-zero", step=200)
def a_rate_of_zero_for_half_of_the_run(course):
    return course(lr=from_(200, 0.0))


@quiet(DeadSchedule)
def a_rate_of_zero_at_the_end(course):
    return course(lr=from_(390, 0.0))
