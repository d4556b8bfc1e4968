"""Steps that wait for their data or take longer."""

from __future__ import annotations

from postmortem.diagnoses.input_pipeline import InputPipeline
from tests.diagnoses.cases import at_, from_, quiet, tells


@tells(InputPipeline, name="slowdown", root="throughput-drop", step=200)
def steps_twice_as_long(course):
    return course(step_time=from_(200, lambda x: 2 * x))


@quiet(InputPipeline)
def slow_steps_that_come_and_go(course):
    return course(step_time=at_(slice(150, 250), 2))
