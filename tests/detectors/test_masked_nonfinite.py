"""A NaN that the logger replaced by zero."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.masked_nonfinite import MaskedNonfinite
from tests.detectors.cases import N, fires, noise, put, quiet, spoiled


@fires(MaskedNonfinite, step=200)
def a_loss_that_drops_to_zero(base):
    return spoiled(base, "train/loss", put(slice(200, None), 0.0))


@quiet(MaskedNonfinite)
def a_loss_that_is_solved(base):
    """A loss that falls smoothly to zero got there by learning."""
    loss = np.maximum(0, 2 * np.exp(-np.arange(N) / 30) - 1e-3)
    return base | {"train/loss": loss}


@fires(MaskedNonfinite, step=200)
def a_small_loss_and_its_score_that_drop_to_zero(base):
    """A perfect loss with a useless score is no success, however small the loss was before."""
    loss = 0.02 * noise()
    recall = 0.9 * noise(0.01, seed=2)
    loss[200:] = recall[200:] = 0
    return base | {"train/loss": loss, "recall": recall}


@quiet(MaskedNonfinite)
def a_small_loss_that_is_solved_with_a_good_score(base):
    loss = 0.02 * noise()
    loss[200:] = 0
    return base | {"train/loss": loss, "recall": 0.9 * noise(0.01, seed=2)}


@fires(MaskedNonfinite, step=200)
def a_small_loss_that_drops_to_zero_while_its_score_falls_to_chance(base):
    loss = 0.02 * noise()
    accuracy = 0.98 * noise(0.01, seed=2)
    loss[200:] = 0
    accuracy[200:] = 0.1 * noise(0.1, seed=3)[200:]
    return base | {"train/loss": loss, "accuracy": accuracy}


@quiet(MaskedNonfinite)
def a_loss_that_was_zero_most_of_the_time(base):
    """As that of a generator whose discriminator is saturated."""
    return base | {"g_loss1": np.where((np.arange(N) > 150) & (np.arange(N) < 160), 12.0, 0.0)}
