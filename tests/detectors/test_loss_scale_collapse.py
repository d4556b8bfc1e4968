"""A loss scale that is halved again and again."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.detectors.loss_scale_collapse import LossScaleCollapse
from tests.detectors.cases import N, fires, quiet, scale, spoiled


@fires(LossScaleCollapse, step=300)
def a_scale_halved_at_every_step(base):
    return spoiled(base, "loss_scale", scale(slice(300, None), 0.5 ** np.arange(1, 101)))


@quiet(LossScaleCollapse)
def a_scale_that_sinks_slowly(base):
    """One halving in fifty steps over the whole run."""
    return base | {"loss_scale": 65536.0 * 0.5 ** (np.arange(N) // 50)}


@pytest.mark.parametrize(
    ("first", "settled", "fired"), [(2.0**26, 2.0**17, False), (2.0**16, 2.0**8, False), (2.0**16, 1.0, True)]
)
def test_the_search_for_the_first_loss_scale(first, settled, fired, view_of):
    """Halving from the first step on until a useful scale is found is how a scaler begins; down to 1 is a collapse."""
    values = np.maximum(settled, first * 0.5 ** np.arange(200))
    values[150:] *= 2
    assert bool(list(LossScaleCollapse().detect(view_of({"loss_scale": values})))) == fired
