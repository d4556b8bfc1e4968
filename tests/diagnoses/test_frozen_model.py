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


def test_a_loss_that_rose_in_its_first_steps_is_no_frozen_model(story, course):
    """The weights did change: what left its range in these steps is named, and the level is not that of step 0."""
    loss = 4.845 * np.exp(0.0005 * np.random.default_rng(0).standard_normal(400))
    loss[:8] = [3.52, 4.16, 4.23, 3.65, 0.71, 7.9, 5.2, 5.1]
    temperature = np.r_[0.45, 0.38, 0.28, 0.12, -0.26 - 6 * np.linspace(0, 1, 396)]
    told = story({"loss": loss, "temperature": temperature, "bias": 0.1 + 0.01 * np.arange(400)}).diagnosis
    assert (told.name, told.last_good_step) == ("early-collapse", None)
    assert "stays near 4.845 from step 8 on: it rose from 3.52 at step 0" in told.summary
    assert [line for line in told.evidence_for if "sign" in line] == [
        "temperature changes its sign at step 4, from 0.45 at first to -6.26 in the end"
    ]
