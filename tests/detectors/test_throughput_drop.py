"""Steps that take longer for good."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

import postmortem
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


def rows_of_episodes(path, returns, seconds):
    """A log whose rows have a time and no step time, and what a scan finds of it: {name: (severity, message)}."""
    start = datetime(2026, 5, 4, 10, 0, 0)
    lines = [
        f"{start + timedelta(seconds=float(t))} episode {10 * i} return {r:.1f} loss {0.3 + 0.01 * (i % 7):.4f}"
        for i, (r, t) in enumerate(zip(returns, np.cumsum(seconds), strict=True))
    ]
    path.write_text("\n".join(lines) + "\n")
    [run] = postmortem.scan(path).runs
    return {f.name: (f.severity, f.message) for f in run.findings}


def test_rows_that_take_longer_with_their_episodes_are_no_slowdown(tmp_path):
    """What goes up and down with the return is the length of the episodes; what only rises meanwhile is slowness."""
    level = np.interp(np.arange(120), [0, 40, 60], [20, 20, 160])
    returns = level * noise(0.3, 120)
    severity, message = rows_of_episodes(tmp_path / "a.log", returns, 0.02 * returns * noise(0.1, 120, 2))[
        "throughput-drop"
    ]
    assert severity == "info"
    assert "return rises" in message
    alone = rows_of_episodes(tmp_path / "b.log", returns, 0.02 * level * noise(0.1, 120, 3))
    assert alone["throughput-drop"][0] == "warning"
