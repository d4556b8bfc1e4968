"""A schedule that ended before the training."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.dead_schedule import DeadSchedule
from tests.diagnoses.cases import from_, quiet, tells


@tells(DeadSchedule, root="lr-zero", step=200)
def a_rate_of_zero_for_half_of_the_run(course):
    return course(lr=from_(200, 0.0))


@quiet(DeadSchedule)
def a_rate_of_zero_at_the_end(course):
    return course(lr=from_(390, 0.0))


def test_a_rate_that_was_dropped_too_far_is_no_schedule_that_ran_too_fast(story):
    """Of a staircase the log shows each drop: their steps and size are named, and the values are logged ones."""
    t = np.arange(12) * 32
    rate = (t, 0.01 * 0.01 ** (np.arange(12) // 3))
    rows = np.arange(384)
    loss = np.where(rows < 96, 0.57 + 2 * np.exp(-rows / 20), 0.57) + 0.03 * np.random.default_rng(0).standard_normal(
        384
    )
    told = story({"loss": loss, "lr": rate}).diagnosis
    assert told.name == "dead-schedule"
    assert "fallen from 0.01 to 1e-06 and on to 1e-08 by step 352" in told.summary
    assert told.next[0].startswith("lr drops at steps 96, 192, 288, each time to 0.01 of its value")


def test_a_single_drop_of_the_rate_is_named(story, course):
    """One drop by four orders of magnitude: what set it is to be checked, no number of steps of a schedule."""
    rows = np.arange(400)
    flat = 0.9 + 2 * np.exp(-np.minimum(rows, 150) / 70)
    noisy = flat * np.exp(0.03 * np.random.default_rng(0).standard_normal(400))
    told = story(course(loss=lambda _: noisy, lr=from_(150, 3e-8))).diagnosis
    assert told.name == "dead-schedule"
    assert told.next[0].startswith("lr drops once, from 0.0003 to 3e-08 at step 150")
    assert not any("times too fast" in action for action in told.next)
