"""One batch that made a stable training fail."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.bad_batch import BadBatch
from tests.diagnoses.cases import NAN_FROM_200, from_, grow, quiet, tells


@tells(BadBatch, name="bad-batch-or-numerics", root="nan-onset", step=200)
def a_loss_that_is_nan_out_of_a_calm_course(course):
    return course(**NAN_FROM_200)


@quiet(BadBatch)
def a_loss_that_climbed_before_it_was_nan(course):
    """A divergence over a hundred steps is not caused by one batch."""

    def climb(x):
        return from_(300, np.nan)(grow(200, 25)(x))

    return course(loss=climb, grad_norm=from_(300, np.nan))


@quiet(BadBatch)
def a_gradient_norm_far_above_its_level_one_row_before(course):
    """A gradient norm of 1e14 right before the NaN is an explosion."""

    def explode(x):
        x[199] = 1e14
        x[200:] = np.nan
        return x

    return course(loss=from_(200, np.nan), grad_norm=explode)


def test_a_nan_out_of_calm_has_two_explanations(story, course):
    """A log does not tell faulty samples from an operation at its numeric limit: both are named, as possible."""
    told = story(course(**NAN_FROM_200)).diagnosis
    assert told.strength == "possible"
    assert "Either the batch of step 200 holds faulty samples, or an operation" in told.summary
    assert told.next[0].startswith("check the samples of step 200")
    assert told.next[1].startswith("if the samples are in order: look for sqrt, norm")


def _one_batch(value):
    def change(x):
        x[200:] *= np.concatenate([[value], 30 * value * np.exp(-np.arange(199) / 8) + 4])
        return x

    return change


def test_a_leap_out_of_calm_gradients_points_at_the_batch(story, course):
    """The loss of a step is computed before its update: at a constant rate, after a gradient of the usual size, a leap
    of loss and gradient in one step is the batch's, whether or not the training recovers."""
    told = story(course(loss=_one_batch(4e3), grad_norm=_one_batch(4e3))).diagnosis
    assert (told.name, told.strength) == ("bad-batch", "likely")
    assert "The loss of a step is computed before its update" in told.summary
    assert told.next[0].startswith("check the samples of step 200")
    tags = course(loss=_one_batch(4e3), grad_norm=_one_batch(4e3))
    del tags["lr"]
    assert story(tags).diagnosis.strength == "possible"
    sparse = {tag: (np.arange(400) * 5, tags[tag][1]) for tag in ("loss", "grad_norm")}
    assert story(sparse).diagnosis.name != "bad-batch"  # four steps in between are not logged


def test_a_loss_that_stays_up_without_a_gradient_is_no_bad_batch(story, course):
    """Where the gradient norm does not rise with the loss, the weights or the data changed before the step."""
    told = story(course(loss=from_(200, 2.6), grad_norm=from_(200, 0.9))).diagnosis
    assert told.name == "diverged"
    assert any("does not rise with the loss" in words for words in told.evidence_for)
    assert told.next[0].startswith("check what changed right before step 200")


def test_few_rows_and_a_rising_rate_speak_against_a_stable_training(story, course):
    """Three rows of a warm-up do not show what is usual; the sentence says how many there are."""
    short = {
        tag: np.r_[tags[-3:], np.full(30, np.nan)] for tag, tags in course().items() if tag in ("loss", "grad_norm")
    }
    told = story(short | {"lr": np.r_[1e-4, 2e-4, 3e-4, 4e-4 * np.ones(30)]}).diagnosis
    assert told.name == "bad-batch-or-numerics"
    assert told.summary.startswith("The training was stable in the 3 rows before: ")
    assert [line.split(":")[0] for line in told.evidence_against] == [
        "only 3 rows are logged before",
        "lr was rising, from 0.0003 to 0.0004",
    ]
    assert not story(course(**NAN_FROM_200)).diagnosis.evidence_against
