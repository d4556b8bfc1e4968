"""A log that stops in the middle; a W&B run without an exit record was killed from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem.core.points import PointsBuilder
from postmortem.core.reading import Reading
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.detectors.silent_death import SilentDeath
from tests.detectors.cases import fires, quiet


@fires(SilentDeath, step=399, config={"max_steps": 5000})
def a_log_that_stops_at_step_400_of_5000(base):
    return base


@quiet(SilentDeath, config={"max_steps": 400})
def a_log_that_ends_at_its_last_step(base):
    return base


def wandb_run(exit_code: int | None, ended: str) -> Run:
    builder = PointsBuilder()
    builder.extend("loss", range(50), [1 / (i + 1) for i in range(50)])
    points = builder.build()
    reading = Reading(source="wandb", path="run-a.wandb", facts={"exit_code": exit_code})
    streams = [Stream("wandb", "a", points, *segments(points))]
    return Run(
        name="a",
        path=Path("a"),
        streams=streams,
        event_list=[],
        problems=[],
        sources=[],
        readings=[reading],
        ended=ended,
    )


@pytest.mark.parametrize(
    ("exit_code", "ended", "steps"), [(None, "unknown", [49]), (0, "completed", []), (None, "running", [])]
)
def test_missing_exit_record(exit_code, ended, steps):
    """No exit record and no other end: a silent death at the last step; completed or still running: nothing."""
    found = list(SilentDeath(SilentDeath.Options()).detect(View(wandb_run(exit_code, ended))))
    assert [f.step for f in found] == steps
