"""A discriminator that never errs any more."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.generator_collapse import GeneratorCollapse
from tests.detectors.cases import N, fires, quiet

RNG = np.random.default_rng(1)
D, G = 1.0 + 0.15 * RNG.standard_normal(N), 1.5 + 0.3 * RNG.random(N)


def then(before, after, at=200):
    """`before` up to point `at`, `after` from there on."""
    return np.where(np.arange(N) < at, before, after)


@fires(GeneratorCollapse, step=200)
def the_generator_loss_saturates(base):
    return {"Loss_D": then(D, 1e-5 * D), "Loss_G": then(G, 27.6 + 0.01 * G)}


@fires(GeneratorCollapse, step=0)
def it_was_so_from_the_start(base):
    """With squared errors a generator that never deceives has a loss of exactly 1."""
    return {"d_loss": 1e-3 * D, "g_loss": np.full(N, 1.0)}


@fires(GeneratorCollapse, step=200)
def both_losses_are_clipped(base):
    """The discriminator's zeros are no NaN that a logger replaced."""
    return {"Loss_D": then(D, 0.0), "Loss_G": then(G, 100.0)}


@quiet(GeneratorCollapse)
def a_discriminator_that_is_ahead_for_a_while(base):
    low = np.where((np.arange(N) > 100) & (np.arange(N) < 220), 0.004, D)
    return {"Loss_D": low, "Loss_G": np.where(low < 0.01, 6.0, G)}


@quiet(GeneratorCollapse)
def a_strong_discriminator(base):
    """0.05 to 0.3 is usual where the generator still learns."""
    return {"Loss_D": 0.12 * D, "Loss_G": 4.5 * G}


@quiet(GeneratorCollapse)
def a_generator_that_catches_up(base):
    """Its loss falls while the discriminator's is low."""
    return {"Loss_D": then(D, 0.005 * D), "Loss_G": then(G, 6 * np.exp(-np.arange(N) / 150))}


@fires(GeneratorCollapse, step=0)
def a_discriminator_at_the_clamp_of_its_cross_entropy(base):
    return {"errD1": np.full(N, 100.0), "g_loss1": np.zeros(N)}


@quiet(GeneratorCollapse)
def a_setting_in_capitals(base):
    """No letter of it stands for a discriminator, and no other for a generator."""
    return {"Loss_D": D, "Loss_G": G, "DETECTIONS_PER_IMG": np.full(66, 100.0), "GAMMA": np.full(66, 100.0)}


@quiet(GeneratorCollapse)
def a_discriminator_that_left_the_clamp(base):
    return {"errD1": then(np.full(N, 100.0), D), "g_loss1": G}
