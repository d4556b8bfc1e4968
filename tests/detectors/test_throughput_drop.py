"""Steps that take longer for good."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.throughput_drop import ThroughputDrop
from tests.detectors.cases import N, fires, noise, quiet, scale, spoiled

LATE = np.arange(N) >= 200


@fires(ThroughputDrop, step=200)
def steps_twice_as_long(base):
    return spoiled(base, "step_time", scale(slice(200, None), 2.0))


@quiet(ThroughputDrop)
def slow_steps_that_come_and_go(base):
    return spoiled(base, "step_time", scale(slice(150, 250), 2.0))


@quiet(ThroughputDrop)
def steps_of_a_fraction_of_a_millisecond(base):
    """0.07 to 0.29 ms is a busy machine, in seconds or in milliseconds."""
    factor = np.where(np.arange(N) < 200, 7e-5, 2.9e-4) * noise()
    return {tag: value for tag, value in base.items() if tag != "step_time"} | {"step_time": factor}


@quiet(ThroughputDrop)
def the_same_in_milliseconds(base):
    tags = steps_of_a_fraction_of_a_millisecond(base)
    return {tag: value for tag, value in tags.items() if tag != "step_time"} | {"step_time_ms": 1e3 * tags["step_time"]}


@quiet(ThroughputDrop, ranks={"step_time": {k: 0.2 * noise(seed=k) * (1 + 3 * (k == 2) * LATE) for k in range(4)}})
def one_slow_rank_of_four(base):
    """One slow rank is a straggler."""
    return {tag: value for tag, value in base.items() if tag != "step_time"}


@fires(ThroughputDrop, step=200, ranks={"step_time": {k: 0.2 * noise(seed=k) * (1 + 3 * LATE) for k in range(4)}})
def all_ranks_slow(base):
    return {tag: value for tag, value in base.items() if tag != "step_time"}
