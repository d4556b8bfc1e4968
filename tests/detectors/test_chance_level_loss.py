"""A loss at the level of guessing."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.chance_level_loss import ChanceLevelLoss
from tests.detectors.cases import N, fires, noise, quiet


@fires(ChanceLevelLoss, step=0, config={"num_classes": 10})
def a_loss_at_the_log_of_the_classes(base):
    return {"loss": np.log(10) + 0.01 * np.log(noise(1.0))}


@quiet(ChanceLevelLoss, config={"num_classes": 10})
def a_loss_that_leaves_that_level(base):
    return {"loss": (0.3 + (np.log(10) - 0.3) * np.exp(-np.arange(N) / 100)) * noise(0.01)}


@quiet(ChanceLevelLoss)
def a_score_of_the_batches_while_the_loss_still_falls(base):
    return {"loss": (8 + 4 * np.exp(-np.arange(N) / 100)) * noise(0.01), "accuracy": np.zeros(N)}


@fires(ChanceLevelLoss, step=0)
def a_score_at_zero_with_a_loss_that_does_not_fall(base):
    return {"loss": 8 * noise(0.01), "accuracy": np.zeros(N)}


@fires(ChanceLevelLoss)
def an_accuracy_of_less_than_one_per_cent(base):
    """0.9 beside values above 1 is 0.9 %, not 90 %."""
    return {"loss": np.log(100) * noise(0.002), "acc": 0.9 * noise(0.3, seed=2)}
