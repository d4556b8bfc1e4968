"""A gradient norm that climbs and stays high."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.detectors.gradient_explosion import GradientExplosion
from tests.detectors.cases import fires, noise, quiet, scale, spoiled


@fires(GradientExplosion)
def a_climb_by_orders_of_magnitude(base):
    return spoiled(base, "grad_norm", scale(slice(200, None), np.exp(np.minimum(np.arange(200) / 10, 6))))


@quiet(GradientExplosion)
def a_climb_that_comes_back(base):
    return spoiled(base, "grad_norm", scale(slice(200, 240), np.exp(np.r_[0:5:20j, 5:0:20j])))


@pytest.mark.parametrize(
    ("start", "rises", "severity"), [(8.0, 1.0, "warning"), (0.3, 1.0, "error"), (8.0, 3.0, "error")]
)
def test_a_norm_that_only_rises_back_to_where_it_began(view_of, start, rises, severity):
    """With a loss that stays where it is, that is no explosion; above its start, or with a loss that rises, it is."""
    at = np.arange(100)
    norm = np.where(at < 2, start, 0.3) * noise(0.1, n=100) * np.interp(at, [40, 80], [1, 16])
    loss = 5.54 * np.interp(at, [40, 80], [1, rises]) + 0.005 * np.log(noise(1.0, n=100, seed=2))
    (found,) = GradientExplosion().detect(view_of({"gnorm": norm, "loss": loss}))
    assert found.severity == severity
