"""A divergence that falls to nothing."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.posterior_collapse import PosteriorCollapse
from tests.detectors.cases import N, fires, noise, quiet

STEPS = np.arange(N)
REBUILT = (5 + 20 * np.exp(-STEPS / 20)) * noise(0.02)


@fires(PosteriorCollapse)
def a_weight_that_is_too_high(base):
    return {"recon_loss": REBUILT, "kl_loss": (1.3e-4 + 0.09 * np.exp(-STEPS / 8)) * noise(0.1, seed=2)}


@quiet(PosteriorCollapse)
def a_code_that_is_used(base):
    return {"recon_loss": REBUILT, "kl_loss": (9 - 8.9 * np.exp(-STEPS / 60)) * noise(0.05, seed=2)}


@quiet(PosteriorCollapse)
def a_weight_that_is_raised_slowly(base):
    """The divergence is high without a weight, and falls as that comes."""
    return {"recon_loss": REBUILT, "KLD": (4 + 60 * np.exp(-STEPS / 40)) * noise(0.05, seed=2)}


@quiet(PosteriorCollapse)
def a_mean_over_the_pixels(base):
    """Small from the first step on, and it rises."""
    return {"train/rec_loss": REBUILT / 3000, "train/kl": (3e-4 - 2.8e-4 * np.exp(-STEPS / 60)) * noise(0.05, seed=2)}


@quiet(PosteriorCollapse)
def a_collapse_from_which_the_code_comes_back(base):
    return {"recon_loss": REBUILT, "kl": np.where(STEPS < 250, 0.09 * np.exp(-STEPS / 8) + 1e-4, 0.1 * noise(0.1))}


@quiet(PosteriorCollapse)
def a_policy_that_no_longer_changes(base):
    """The divergence of two policies, beside a code that is used."""
    kl = (9 - 8.9 * np.exp(-STEPS / 60)) * noise(0.05, seed=2)
    return {"recon_loss": REBUILT, "kl_loss": kl, "approx_kl": 0.02 * np.exp(-STEPS / 20) + 1e-5}
