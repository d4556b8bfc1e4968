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
