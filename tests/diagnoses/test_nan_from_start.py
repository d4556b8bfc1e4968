"""A loss that never was a number."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.nan_from_start import NanFromStart
from tests.diagnoses.cases import NAN_FROM_200, quiet, tells


@tells(NanFromStart, root="nan-onset", step=0)
def a_loss_of_nan_only(course):
    return {"loss": np.full(50, np.nan), "lr": np.full(50, 1e-3)}


@quiet(NanFromStart)
def a_loss_that_was_a_number_before(course):
    return course(**NAN_FROM_200)


def test_an_infinity_after_a_few_updates_asks_for_the_learning_rate_first(story):
    """The first row is that of step 3: three updates were made. Beside the infinity the NaN has a finite-less row
    before it, which is named as what it is."""
    step = np.arange(3, 200, 4)
    loss = np.full(len(step), np.nan)
    loss[0] = np.inf
    report = story({"loss": (step, loss), "lr": (step, np.full(len(step), 3.0))})
    told = report.diagnosis
    assert told.name == "nan-from-the-start"
    assert told.next[0].startswith("lower the learning rate")
    assert "step 3" in told.next[0]
    messages = [f.message for f in report.findings]
    assert "loss is NaN at step 7; it was inf at its first point (step 3) and stays non-finite" in messages
    assert not any("NaN since its first point" in m for m in messages)
    loss[:] = np.inf
    at_once = story({"loss": (step - 3, loss), "lr": (step - 3, np.full(len(step), 3.0))}).diagnosis
    assert "extreme values" in at_once.next[0]  # no update was made before step 0
