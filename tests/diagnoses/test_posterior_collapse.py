"""A latent code that is not used."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.posterior_collapse import PosteriorCollapse
from tests.diagnoses.cases import T, quiet, tells


def autoencoder(start: float, end: float):
    """A reconstruction loss that falls, and a divergence that goes from one level to the other."""
    rng = np.random.default_rng(0)
    scatter = 1 + 0.05 * rng.standard_normal(len(T))
    rebuilt = 5 + 20 * np.exp(-np.arange(len(T)) / 20)
    return {
        "recon_loss": rebuilt * scatter,
        "kl_loss": (end + (start - end) * np.exp(-np.arange(len(T)) / 8)) * scatter,
    }


@tells(PosteriorCollapse, root="posterior-collapse")
def the_weight_is_too_high_from_the_start(course):
    return autoencoder(0.09, 1e-4)


@quiet(PosteriorCollapse)
def the_code_is_used(course):
    return autoencoder(0.09, 9.0)
