"""A gradient norm that climbs and stays high."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.gradient_explosion import GradientExplosion
from tests.detectors.cases import fires, quiet, scale, spoiled


@fires(GradientExplosion)
def a_climb_by_orders_of_magnitude(base):
    return spoiled(base, "grad_norm", scale(slice(200, None), np.exp(np.minimum(np.arange(200) / 10, 6))))


@quiet(GradientExplosion)
def a_climb_that_comes_back(base):
    return spoiled(base, "grad_norm", scale(slice(200, 240), np.exp(np.r_[0:5:20j, 5:0:20j])))
