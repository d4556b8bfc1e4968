"""The first infinity of a quantity, and infinities that mean "not yet"."""

import numpy as np
import pytest

from postmortem.detectors.inf_onset import InfOnset
from tests.detectors.cases import fires, put, quiet, spoiled


@fires(InfOnset, step=200)
def one_infinite_loss(base):
    return spoiled(base, "train/loss", put(200, np.inf))


@quiet(InfOnset)
def a_best_score_before_the_first_evaluation(base):
    return base | {"best_val_loss": np.r_[np.full(50, np.inf), np.full(350, 0.5)]}


def found(view):
    return [(f.tag, f.severity, f.step) for f in InfOnset(InfOnset.Options()).detect(view)]


@pytest.mark.parametrize("tag", ["best_val_loss", "val/best loss", "Best loss"])
def test_a_best_value_starts_as_an_infinity(tag, healthy, view_of):
    """There is no best loss before the first evaluation, and none at all where the settings are printed once."""
    base = healthy()
    value = np.full(400, 0.5)
    value[:50] = np.inf
    assert not found(view_of(base | {tag: value}))
    assert [severity for _, severity, _ in found(view_of(base | {tag: np.array([np.inf])}))] == ["info"]


def test_a_best_value_that_becomes_infinite_is_a_fault(healthy, view_of):
    value = np.full(400, 0.5)
    value[300:] = -np.inf
    assert found(view_of(healthy() | {"best_score": value})) == [("best_score", "error", 300)]


def test_a_loss_that_is_infinite_from_the_start_is_a_fault(healthy, view_of):
    value = np.full(400, 0.5)
    value[:5] = np.inf
    assert found(view_of(healthy() | {"aux_loss": value})) == [("aux_loss", "error", 0)]


def test_an_episode_that_the_series_recovered_from_is_information_of_its_own(healthy, view_of):
    """A gradient norm that is infinite twice, is finite for long and then breaks: the break is the onset, the earlier
    steps are named by a finding of their own."""
    norms = np.full(400, 1.0)
    norms[[60, 61]] = np.inf
    norms[-12:] = np.inf
    run = {tag: values for tag, values in healthy().items() if tag != "loss_scale"}  # no scaler skips anything
    first, last = InfOnset(InfOnset.Options()).detect(view_of(run | {"grad_norm": norms}))
    assert (first.step, first.severity, first.evidence["count"]) == (60, "info", 2)
    assert (last.step, last.severity) == (388, "error")
    assert "first at step 60" in last.message
