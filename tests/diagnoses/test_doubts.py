"""Evidence against a diagnosis, and other causes that fit the same numbers."""

from __future__ import annotations

import numpy as np

T = np.arange(400)


def times(at, factor):
    def change(x):
        x[at:] = x[at:] * factor
        return x

    return change


def test_a_loss_that_is_not_finite_for_good_speaks_against_the_scale(story, course):
    """Where the loss itself is NaN in every batch since the scale fell, the diagnosis says that no loss scale helps."""
    tags = course(loss=lambda x: np.where(T >= 200, np.nan, x))
    tags["loss_scale"] = 65536.0 * 0.5 ** np.maximum(0, T - 199)
    told = story(tags).diagnosis
    assert told.name == "loss-scale-collapse"
    assert any("loss itself is non-finite" in line for line in told.evidence_against)


def test_a_finite_loss_does_not_speak_against_the_scale(story, course):
    """A scale that falls while the loss stays finite is the plain case."""
    tags = course() | {"loss_scale": 65536.0 * 0.5 ** np.maximum(0, T - 199)}
    assert story(tags).diagnosis.evidence_against == ()


def test_gradients_that_explode_in_one_calm_step_point_at_its_batch(story, course):
    """Where loss and gradient norm leap together in a stable training, the samples of the step come first."""
    told = story(course(grad_norm=times(200, 3000), loss=times(200, 3000))).diagnosis
    assert told.name == "exploding-gradients"
    assert told.next[0].startswith("check the samples of step 200")


def test_where_every_tenth_step_is_logged_one_of_ten_batches_is_meant(story, course):
    """A diagnosis about a batch names no step that the log does not show."""
    broken = {"loss": lambda x: np.where(T >= 200, np.nan, x), "grad_norm": lambda x: np.where(T >= 200, np.nan, x)}
    sparse = {
        tag: (10 * step, value)
        for tag, value in course(**broken).items()
        for step, value in [value if isinstance(value, tuple) else (T, value)]
    }
    told = story(sparse).diagnosis
    assert told.name == "bad-batch-or-numerics"
    assert "Either a batch of steps 1991 to 2000 holds faulty samples" in told.summary
    assert any(line.startswith("check the samples of steps 1991 to 2000: ") for line in told.next)
