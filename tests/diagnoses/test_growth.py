"""A loss that grows by orders of magnitude up to a non-finite value: the same cause whatever its speed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.diagnoses.cases import from_

FAST = [7.0312, 5.742, 479.0115, 16805368.0, 1.094e21, np.inf] + [np.nan] * 54
SLOWER = [7.0312, 6.6456, 6.7787, 42.77, 753.43, 3129124.25, 9.82e17, np.inf] + [np.nan] * 52


@pytest.mark.parametrize(("loss", "start"), [(FAST, 1), (SLOWER, 2)], ids=["three rows", "four rows"])
@pytest.mark.parametrize("logged", [False, True], ids=["loss alone", "with lr and grad_norm"])
def test_growth_up_to_infinity_is_a_divergence_at_any_speed(story, loss, start, logged):
    """However many rows it takes, and whether or not a gradient norm is logged, it has one name and one advice."""
    tags = {"loss": loss}
    if logged:
        tags |= {"lr": [1.0] * 60, "grad_norm": [3.4, *np.array(loss[:-1]) / 3]}
    told = story(tags).diagnosis
    assert (told.name, told.strength) == ("diverged", "likely")
    assert f"loss grew from {loss[start]:.4g} at step {start} to" in told.summary
    assert told.last_good_step <= start
    assert not any(" eps " in line for line in told.next)
    assert any("third" in line for line in told.next)
    assert any("clip the gradient norm" in line for line in told.next)
    assert any("warm" in line for line in told.next)
    assert ("lr = 1" in told.summary) is logged


def test_a_slow_divergence_has_the_same_name(story):
    """A loss that climbs for a hundred steps and ends in infinity: its finding is another, its cause the same."""
    rng = np.random.default_rng(0)
    loss = 0.05 * np.exp(0.1 * rng.standard_normal(240))
    loss[120:230] *= np.exp(np.minimum(np.arange(110) / 6, 40))
    loss[226:230] = [150.0, 3e5, 1e14, 2e32]
    loss[230:] = np.inf
    report = story({"loss": loss})
    assert report.findings[0].name in ("divergence", "inf-onset")
    assert (report.diagnosis.name, report.diagnosis.strength) == ("diverged", "likely")
    assert "infinite at step 230" in report.diagnosis.summary


def test_a_sudden_infinity_is_no_divergence(story, course):
    """Without growth before it, nothing in the log shows that the training diverged."""
    for change in (from_(200, np.inf), from_(200, np.nan)):
        assert story(course(loss=change)).diagnosis.name != "diverged"


def test_a_spike_long_before_or_a_doubling_is_no_growth(story, course):
    """The growth has to lead up to the non-finite value, by orders of magnitude."""

    def spiked(x):
        x[185] *= 300
        x[200:] = np.nan
        return x

    def doubled(x):
        x[196:200] *= [1.2, 1.5, 1.8, 2.0]
        x[200:] = np.nan
        return x

    assert "diverged" not in {story(course(loss=change)).diagnosis.name for change in (spiked, doubled)}


def test_one_row_far_above_the_level_is_possible_only(story, course):
    """One batch may cause a jump; several rows of growth are the training's own."""

    def jumped(x):
        x[199] = 900.0
        x[200:] = np.nan
        return x

    told = story({"loss": course(loss=jumped)["loss"]}).diagnosis
    assert (told.name, told.strength) == ("diverged", "possible")
    assert "loss jumped from" in told.summary


def test_an_infinity_after_growth_is_not_blamed_on_fp16(story):
    """A loss of 1e21 is beyond fp16, but it would have been infinite in fp32 a step later."""
    assert story({"loss": FAST}, config={"precision": "16-mixed"}).diagnosis.name == "diverged"


def test_the_page_of_numerics_is_true_of_what_it_reports(story, course):
    """It says that neither loss nor gradient norm grew by orders of magnitude: then it is not numerics."""
    from postmortem.diagnoses.numerics import Numerics

    assert "neither the loss nor the gradient norm grew" in " ".join(Numerics.__doc__.split())
    for loss in (FAST, SLOWER):
        assert story({"loss": loss}).diagnosis.name != "numerics"
    assert story({"loss": course(loss=from_(200, np.nan))["loss"]}).diagnosis.name == "numerics"
