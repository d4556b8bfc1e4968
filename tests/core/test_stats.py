"""Robust statistics against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from postmortem.core.stats import (
    blocks,
    centred_median,
    column_medians,
    groups,
    median,
    noise,
    plain,
    quantile,
    sigma,
    step_change,
    trailing_median,
)

values = arrays(np.float64, st.integers(0, 80), elements=st.floats(-1e6, 1e6))


@settings(max_examples=40, deadline=None)
@given(values, st.integers(1, 30))
def test_trailing_median_is_the_loop(x, window):
    """Each point gets the median of the window before it, without itself."""
    found = trailing_median(x, window)
    expected = [x[0] if i == 0 else np.median(x[max(0, i - window) : i]) for i in range(len(x))]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, st.integers(1, 30)))
def test_the_first_medians_are_exact(x):
    """A point with fewer values before it than the window gets the median of all of them, NaN included."""
    expected = [median(x[:i]) if i else x[0] for i in range(len(x))]
    np.testing.assert_array_equal(trailing_median(x, 100), expected)  # the order of 0 and -0 does not matter


@settings(max_examples=40, deadline=None)
@given(values, st.integers(1, 15))
def test_centred_median_is_the_loop(x, half):
    """Each point gets the median around it, of fewer values at both ends."""
    window = 2 * half + 1
    half = min(window, len(x)) // 2
    expected = [np.median(x[max(0, i - half) : i + half + 1]) for i in range(len(x))]
    np.testing.assert_allclose(centred_median(x, window), expected, rtol=1e-12, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, st.integers(0, 9) | st.integers(22, 27) | st.integers(998, 1003), elements=st.floats(width=16))
)
def test_median_is_that_of_numpy(x):
    """Sorted or partitioned, with NaN and infinities: the median of numpy."""
    with np.errstate(all="ignore"):
        expected = np.median(x) if len(x) else np.nan
    assert median(x) == expected or (np.isnan(median(x)) and np.isnan(expected))


def test_wide_windows_are_close_to_the_exact_median():
    """Windows above 51 points go over blocks: near the exact answer, and not quadratic."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 10, 5000) + rng.standard_normal(5000)
    exact = np.array([np.median(x[max(0, i - 200) : i + 201]) for i in range(300, 4700)])
    assert np.abs(centred_median(x, 401)[300:4700] - exact).max() < 0.25


def test_noise_ignores_the_trend_and_outliers():
    """The noise around a steep course, with spikes in it, comes out near its true size."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 100, 2000) + 0.5 * rng.standard_normal(2000)
    x[::97] += 50
    assert noise(x) == pytest.approx(0.5, rel=0.15)
    assert sigma(rng.standard_normal(5000)) == pytest.approx(1.0, rel=0.05)


def test_step_change_finds_the_split():
    """The first point of the second level, and nearly all of the variance explained."""
    x = np.r_[np.zeros(120), np.ones(80)] + 0.01 * np.random.default_rng(0).standard_normal(200)
    at, share = step_change(x)
    assert at == 120
    assert share > 0.99


@given(
    arrays(np.float64, st.integers(1, 9) | st.integers(998, 1003), elements=st.floats(width=16)),
    st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]),
)
def test_quantile_is_numpys(x, q):
    """For few values and for many, with NaN and infinities."""
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(quantile(x, q), np.quantile(x, q))


def test_groups_join_over_small_gaps():
    """Stretches of True as first and last index; gaps up to `join` are bridged."""
    mask = np.array([0, 1, 1, 0, 0, 1, 0, 1, 0], bool)
    assert groups(mask) == [(1, 2), (5, 5), (7, 7)]
    assert groups(mask, join=1) == [(1, 2), (5, 7)]
    assert groups(np.zeros(3, bool)) == []


def test_blocks_cover_the_start_of_the_series():
    """Medians of stretches of equal length with the index at which each begins."""
    starts, middle = blocks(np.arange(10.0), 5)
    assert starts.tolist() == [0, 2, 4, 6, 8]
    assert middle.tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]


def test_plain_numbers():
    """Six significant digits; integers and booleans stay what they are."""
    assert plain(np.float64(1 / 3)) == 0.333333
    assert plain(np.int64(7)) == 7
    assert plain(True) is True


@given(arrays(np.float64, (4, 9), elements=st.floats()), st.none() | st.integers(0, 3))
def test_column_medians_are_those_of_each_column(table, without):
    """Also in pieces, and without one of the rows; NaN where a column has one."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr("postmortem.core.stats._CHUNK", 4)
        found = column_medians(table, without)
        rows = table if without is None else np.delete(table, without, axis=0)
        np.testing.assert_array_equal(found, [median(column) for column in rows.T])
