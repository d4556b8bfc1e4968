"""Latents of a diffusion pipeline."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.latents import Latents
from tests.diagnoses.cases import T, quiet, tells


def denoised(bad: float):
    """Their statistics in each denoising step, with a value from step 60 on."""
    rng = np.random.default_rng(0)
    largest = 4 + 0.1 * rng.standard_normal(len(T))
    largest[60:] = bad
    return {"latent/absmax": largest, "latent/t": np.linspace(980, 20, len(T))}


@tells(Latents, root="nan-onset")
def a_denoising_step_makes_nan(course):
    return denoised(np.nan)


@quiet(Latents)
def calm_latents(course):
    return denoised(4.0)


@quiet(Latents)
def a_training_of_latents(course):
    """It has a loss, and causes of its own."""
    return {**denoised(np.nan), "loss": np.linspace(2, 1, len(T))}
