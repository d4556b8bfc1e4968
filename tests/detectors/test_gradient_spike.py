"""A jump of the gradient norm that comes back."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.gradient_spike import GradientSpike
from tests.detectors.cases import fires, noise, quiet, scale, spoiled


@fires(GradientSpike, step=200)
def one_row_forty_times_the_level(base):
    return spoiled(base, "grad_norm", scale(200, 40.0))


@quiet(GradientSpike)
def heavy_tails(base):
    """If large values are usual, none of them is a finding."""
    return base | {"grad_norm": 1.2 * noise(1.0)}


def test_a_spike_that_the_loss_does_not_show(view_of, healthy):
    """A clipped gradient of six times the usual norm changes little, if the loss goes on as before."""
    base = spoiled(healthy(), "grad_norm", scale(300, 8.0))
    (found,) = GradientSpike().detect(view_of(base))
    assert found.severity == "info"
    assert "does not react" in found.message
    (found,) = GradientSpike().detect(view_of(spoiled(base, "train/loss", scale(slice(300, 306), 2.0))))
    assert found.severity == "warning"
    (found,) = GradientSpike().detect(view_of({"grad_norm": base["grad_norm"]}))
    assert found.severity == "warning"


def test_a_loss_that_is_back_in_a_few_rows_lost_nothing(view_of):
    """Two rows of a slightly higher loss are a remark; a loss that gives back what was learned is not."""
    t = np.arange(400)
    loss, norm = (1 + 3 * np.exp(-t / 60)) * noise(0.01, 400), 0.5 * noise(0.05, 400, seed=2)
    norm[250] *= 7
    for rise, severity in ((0.4, "info"), (2.0, "warning")):
        high = loss.copy()
        high[250:252] += rise
        (found,) = GradientSpike().detect(view_of({"grad_norm": norm, "loss": high}))
        assert found.severity == severity
        assert ("is back at its level by step 252" in found.message) == (severity == "info")
