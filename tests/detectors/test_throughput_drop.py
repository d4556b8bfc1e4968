"""Steps that take longer for good."""

from __future__ import annotations

from postmortem.detectors.throughput_drop import ThroughputDrop
from tests.detectors.cases import fires, quiet, scale, spoiled


@fires(ThroughputDrop, step=200)
def steps_twice_as_long(base):
    return spoiled(base, "step_time", scale(slice(200, None), 2.0))


@quiet(ThroughputDrop)
def slow_steps_that_come_and_go(base):
    return spoiled(base, "step_time", scale(slice(150, 250), 2.0))
