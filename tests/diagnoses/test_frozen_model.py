"""Weights that do not change."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.frozen_model import FrozenModel
from tests.diagnoses.cases import from_, quiet, tells


@tells(FrozenModel, name="no-learning", root=None)
def a_validation_loss_without_a_change(course):
    """Bit-identical, while the training loss is noisy and flat."""
    rng = np.random.default_rng(0)
    return course(
        loss=from_(150, lambda x: 1.0 * np.exp(0.05 * rng.standard_normal(len(x)))), val_loss=from_(15, 1.04321)
    )


@quiet(FrozenModel)
def the_loss_is_nan_at_the_end(course):
    """An error is the diagnosis, not a metric that did not change."""
    return course(loss=from_(200, np.nan), grad_norm=from_(200, np.nan), val_loss=from_(15, 1.04321))


def test_a_tiny_learning_rate_is_named_instead_of_a_stale_metric(story, course):
    """The losses move a little and the accuracy not at all: the weights do change. No step before was good."""
    step = np.arange(24, 400, 25)
    tags = course() | {
        "loss": 1.45 + 0.03 * np.random.default_rng(0).standard_normal(400),
        "val_loss": (step, 1.4474 - 1e-5 * np.arange(len(step))),
        "val_acc": (step, np.full(len(step), 0.1071)),
    }
    told = story(tags | {"lr": np.full(400, 1e-7)}).diagnosis
    assert told.name == "learning-rate-too-low"
    assert "lr is never above 1e-07, and val_loss falls at every evaluation" in told.summary
    assert told.last_good_step is None
    usual = story(tags | {"lr": np.full(400, 1e-3)}).diagnosis
    assert usual.name == "no-learning"
