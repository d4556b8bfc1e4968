"""Activations that go to zero and stay there."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.detectors import NotChecked
from postmortem.detectors.activation_vanishing import ActivationVanishing
from tests.detectors.cases import N, fires, noise, put, quiet, scale, spoiled

TAG = "activations/layer1/rms"


@fires(ActivationVanishing, step=250)
def a_layer_dies(base):
    return spoiled(base | {TAG: noise(0.1)}, TAG, put(slice(250, None), 0.0))


@fires(ActivationVanishing, step=300)
def a_layer_fades_to_next_to_nothing(base):
    return spoiled(base | {TAG: noise(0.1)}, TAG, scale(slice(300, None), 1e-6))


@quiet(ActivationVanishing)
def a_layer_that_is_zero_for_a_while(base):
    """A batch of padding, or a gate that opens again."""
    return spoiled(base | {TAG: noise(0.1)}, TAG, put(slice(250, 300), 0.0))


@quiet(ActivationVanishing)
def sparse_activations_that_shrink(base):
    """A regularised layer becomes a hundred times smaller and works on."""
    return base | {TAG: noise(0.3) * np.geomspace(1.0, 0.01, N)}


@quiet(ActivationVanishing)
def a_layer_that_begins_at_zero(base):
    """The last layer of a residual branch is often zero at first."""
    return spoiled(base | {TAG: noise(0.1)}, TAG, put(slice(0, 30), 0.0))


def test_the_first_of_several_layers_is_named(view_of):
    """One finding, at the layer that goes first; the others are its evidence."""
    layers = {f"act/fc{i}/rms": np.where(np.arange(40) < 20 + i, 1.0, 0.0) for i in range(3)}
    (found,) = ActivationVanishing().detect(view_of(layers))
    assert (found.tag, found.step) == ("act/fc0/rms", 20)
    assert found.evidence["also"] == ["act/fc1/rms", "act/fc2/rms"]
    assert "are all zero from step 20 on" in found.message


@pytest.mark.parametrize("tag", ["rms", "action/rms", "weights/rms", "activations/layer1"])
def test_other_sizes_are_no_activations(view_of, tag):
    """Only a tag that names activations is judged."""
    with pytest.raises(NotChecked):
        list(ActivationVanishing().detect(view_of({tag: np.where(np.arange(40) < 20, 1.0, 0.0)})))
