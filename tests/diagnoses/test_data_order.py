"""Data in a fixed order, sorted: the loss jumps where the kind of the samples changes, and repeats its pattern."""

from __future__ import annotations

import numpy as np

from postmortem.core.series import Series
from postmortem.diagnoses.data_order import DataOrder
from postmortem.diagnoses.shared.waves import wave
from tests.diagnoses.cases import T, quiet, tells

EPOCH = 40
FALLING = 2.0 * np.exp(-T / 60) + 0.02
OF_BATCH = np.exp(np.random.default_rng(3).normal(0, 0.6, EPOCH))[T % EPOCH]
"""The batch at a place of the epoch is as difficult in every epoch."""
JUMPS = np.where(np.isin(T, (65, 66, 105, 106)), 40.0, 1.0)
CHANCE = np.exp(np.random.default_rng(4).normal(0, 0.6, len(T)))


@tells(DataOrder, root="loss-spike", step=65)
def sorted_data(course):
    return course() | {"loss": FALLING * OF_BATCH * JUMPS}


@quiet(DataOrder)
def the_same_jumps_in_a_random_order(course):
    return course() | {"loss": FALLING * CHANCE * JUMPS}


@quiet(DataOrder)
def a_learning_rate_that_goes_up_and_down(course):
    rate = 1e-3 * (1 + np.abs(T % EPOCH - EPOCH / 2))
    return course() | {"loss": FALLING * OF_BATCH * JUMPS, "lr": rate}


def of(value):
    return Series(
        tag="loss",
        role="loss",
        rank=-1,
        source="csv",
        step=np.arange(len(value)),
        value=value,
        wall_time=np.full(len(value), np.nan),
    )


def test_the_period_is_that_of_an_epoch():
    """Also with some noise of its own; a mean that starts again in every epoch has one rise, and noise has none."""
    noise = np.exp(np.random.default_rng(5).normal(0, 0.1, len(T)))
    found = wave(of(FALLING * OF_BATCH * noise), 2)
    assert found is not None
    assert (found.rows, found.steps) == (EPOCH, EPOCH)
    assert wave(of(FALLING * CHANCE), 1) is None
    saw = FALLING * (1 + 0.5 * np.exp(-(T % EPOCH) / 10)) * noise**0.1
    assert wave(of(saw), 2) is None
    assert wave(of(saw), 1) is not None
    assert wave(of(np.ones(400)), 1) is None
    assert wave(of(np.ones(3)), 1) is None
