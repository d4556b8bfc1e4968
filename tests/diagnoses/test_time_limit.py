"""A job whose time was used up: how much is left, or that it had stopped long before."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

import postmortem
from postmortem.core.model import Event
from postmortem.diagnoses.time_limit import TimeLimit
from tests.diagnoses.cases import quiet, tells


@tells(
    TimeLimit,
    name="crash: slurm-time-limit",
    root="crash",
    step=399,
    ended="crashed",
    event_list=[
        Event(kind="slurm-time-limit", severity="error", message="slurm-time-limit", file="train.err", line=1, step=399)
    ],
)
def the_message_alone(course):
    return course()


@quiet(
    TimeLimit,
    ended="crashed",
    event_list=[
        Event(kind="slurm-cancelled", severity="error", message="slurm-cancelled", file="train.err", line=1, step=399)
    ],
)
def a_job_that_somebody_cancelled(course):
    """There was time left."""
    return course()


START = datetime(2026, 11, 20, 10)
LIMIT = "slurmstepd: error: *** JOB 4242 ON node7 CANCELLED AT {:%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***\n"


def scanned(tmp_path, rows: int, seconds: float, silence: float, total: int = 10_000):
    when = [START + timedelta(seconds=seconds * i) for i in range(rows + 1)]
    text = "".join(
        f"{when[i]:%Y-%m-%d %H:%M:%S},000 - INFO - step {10 * i}/{total} loss {2 / (1 + i / 50) + 0.01 * (i % 7):.4f}\n"
        for i in range(1, rows + 1)
    )
    (tmp_path / "train.out").write_text(text + LIMIT.format(when[-1] + timedelta(seconds=silence)))
    return postmortem.scan(tmp_path).runs[0].diagnosis


def test_what_is_left(tmp_path):
    """400 of 1000 rows were done in 4 hours: 6 hours are left."""
    found = scanned(tmp_path, rows=400, seconds=36, silence=30)
    assert found.name == "crash: slurm-time-limit"
    assert found.summary.startswith(
        "It stopped at step 4000 of 10000; the rest takes about 6 h 0 min at 3.6 s per step. "
    )
    assert (
        found.next[0]
        == "resume from the newest checkpoint with a time limit above 06:00:00 (Slurm: --time), or in several jobs"
    )


def test_days_are_left(tmp_path):
    assert "above 3-22:30:00" in scanned(tmp_path, rows=40, seconds=360, silence=30, total=9850).next[0]


def test_the_wait_between_two_jobs_is_no_pace(story):
    """A job that was queued again for ten hours in the middle continued as fast as before: 36 s for ten steps."""
    row = np.array([*range(300), *range(280, 401)])
    seconds = 36 * row + 36_000 * (np.arange(len(row)) >= 300)
    ended = Event(
        kind="slurm-time-limit", severity="error", message="DUE TO TIME LIMIT", file="train.err", line=1, step=4000
    )
    tags = {"loss": (10 * row, 2 / (1 + row / 50) + 0.01 * (row % 7), seconds)}
    found = story(tags, event_list=[ended], config={"max_steps": 10_000}, ended="time-limit").diagnosis
    assert found.summary.startswith(
        "It stopped at step 4000 of 10000; the rest takes about 6 h 0 min at 3.6 s per step. "
    )


def test_it_hung_before(tmp_path):
    """Three hours of silence before the limit: the time was not what it lacked."""
    found = scanned(tmp_path, rows=400, seconds=36, silence=3 * 3600 + 700)
    assert found.summary.startswith("Nothing was logged in the last 3 h 12 min before the limit")
    assert found.next[0].startswith("a longer time limit would not help")


def test_another_time_zone_is_no_silence(tmp_path):
    """The logger writes another time than Slurm: whole hours lie between them."""
    found = scanned(tmp_path, rows=400, seconds=36, silence=8 * 3600 + 20)
    assert found.summary.startswith("It stopped at step 4000 of 10000")
