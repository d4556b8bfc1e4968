"""A discriminator that won, and what follows from it."""

from __future__ import annotations

import numpy as np

from postmortem.diagnoses.generator_collapse import GeneratorCollapse
from tests.diagnoses.cases import T, quiet, tells


def losses(discriminator: float, generator: float):
    """Two losses in balance, which leave it at point 200 for these levels."""
    rng = np.random.default_rng(0)
    d = 1.0 + 0.15 * rng.standard_normal(len(T))
    g = 1.5 + 0.3 * rng.random(len(T))
    d[200:] = discriminator * (1 + 0.1 * rng.standard_normal(200))
    g[200:] = generator * (1 + 0.1 * rng.standard_normal(200))
    return {"Loss_D": d, "Loss_G": g}


@tells(GeneratorCollapse, root="generator-collapse", step=200)
def the_discriminator_wins_at_once(course):
    """The jump of the generator's loss is no divergence of its own."""
    return losses(1e-4, 20.0)


@quiet(GeneratorCollapse)
def the_generator_diverges_beside_a_discriminator_that_errs(course):
    return losses(0.2, 200.0)
