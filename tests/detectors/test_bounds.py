"""Detectors do not look closely at a series whose range shows that nothing is to be found: they find the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.core.series import Series
from postmortem.detectors import loss_spike
from postmortem.detectors.divergence import Divergence
from postmortem.detectors.gradient_explosion import GradientExplosion
from postmortem.detectors.gradient_spike import GradientSpike
from postmortem.detectors.gradient_vanishing import GradientVanishing
from postmortem.detectors.loss_spike import LossSpike

KINDS = (LossSpike, GradientSpike, Divergence, GradientExplosion, GradientVanishing)


def courses(seed, size, noise, jump, at, lasts, end):
    """A loss and a gradient norm that fall, with one jump and a slope at the end."""
    rng = np.random.default_rng(seed)
    t = np.arange(size)
    loss = (0.3 + 2 * np.exp(-t / (size / 5))) * np.exp(noise * rng.standard_normal(size))
    where = slice(int(at * size), int(at * size) + lasts)
    loss[where] *= jump
    quarter = size // 4
    loss[-quarter:] *= np.linspace(1, end, quarter)
    norm = np.exp(3 * noise * rng.standard_normal(size)) * np.linspace(1, 1 / end, size)
    norm[where] *= jump**2
    return {"train/loss": loss, "grad_norm": norm}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 20),
    size=st.integers(30, 160),
    noise=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3]),
    jump=st.sampled_from([1.0, 1.05, 1.2, 1.4, 2.5, 40.0]),
    at=st.floats(0.05, 0.9),
    lasts=st.sampled_from([1, 3, 9, 1000]),
    end=st.sampled_from([1.0, 1.2, 1.5, 10.0, 60.0, 0.02]),
)
def test_nothing_is_found_without_the_bounds_that_is_not_found_with_them(
    view_of, seed, size, noise, jump, at, lasts, end
):
    """The findings are the same where each series is looked at closely."""
    tags = courses(seed, size, noise, jump, at, lasts, end)
    quick = [[*kind().detect(view_of(tags))] for kind in KINDS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Series, "climb", property(lambda _: math.inf))
        patch.setattr(Series, "highest", property(lambda _: math.inf))
        patch.setattr(loss_spike, "_cannot_jump", lambda *_: False)
        assert [[*kind().detect(view_of(tags))] for kind in KINDS] == quick


def test_the_range_of_a_series():
    """Lowest, highest and the largest ratio to a value before, by hand; what is not above zero has no ratio."""

    def of(*values):
        return Series("x", None, -1, "csv", np.arange(len(values)), np.array(values), np.full(len(values), np.nan))

    series = of(4.0, 2.0, 3.0, 1.0, 2.5)
    assert (series.lowest, series.highest, series.climb, series.timed) == (1.0, 4.0, 2.5, False)
    assert of(3.0, 0.0).climb == of(3.0, math.nan).climb == of(3.0, math.inf).climb == of().climb == math.inf
    assert of(3.0, math.nan, 2.0).finite.climb == 1.0
    assert of(math.nan).finite.finite.value.size == 0
