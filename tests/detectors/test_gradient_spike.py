"""A jump of the gradient norm that comes back."""

from __future__ import annotations

from postmortem.detectors.gradient_spike import GradientSpike
from tests.detectors.cases import fires, noise, quiet, scale, spoiled


@fires(GradientSpike, step=200)
def one_row_forty_times_the_level(base):
    return spoiled(base, "grad_norm", scale(200, 40.0))


@quiet(GradientSpike)
def heavy_tails(base):
    """If large values are usual, none of them is a finding."""
    return base | {"grad_norm": 1.2 * noise(1.0)}
