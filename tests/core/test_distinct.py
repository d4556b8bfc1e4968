"""`distinct` and `without` give what numpy's functions of sets give, and do not load numpy.ma."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from postmortem.core.distinct import distinct, occurrences, without

INTEGERS = arrays(np.int64, st.integers(0, 30), elements=st.integers(-9, 9))
FLOATS = arrays(
    np.float64, st.integers(0, 30), elements=st.sampled_from([-np.inf, -0.0, 0.0, 1.5, 7.0, np.inf, np.nan])
)


@given(values=st.one_of(INTEGERS, FLOATS))
def test_distinct_values_are_those_of_numpy(values: np.ndarray) -> None:
    """In ascending order, NaN once and last."""
    np.testing.assert_array_equal(distinct(values), np.unique(values))


@given(values=INTEGERS)
def test_counts_are_those_of_numpy(values: np.ndarray) -> None:
    """With the first place of each value."""
    expected = np.unique(values, return_index=True, return_counts=True)
    for own, usual in zip(occurrences(values), expected, strict=True):
        np.testing.assert_array_equal(own, usual)


@given(values=INTEGERS, left_out=INTEGERS)
def test_what_is_left_is_that_of_numpy(values: np.ndarray, left_out: np.ndarray) -> None:
    """The difference of the sets, in ascending order."""
    np.testing.assert_array_equal(without(values, left_out), np.setdiff1d(values, left_out))


@pytest.mark.parametrize("unused", ["numpy.ma", "importlib.metadata", "pandas", "postmortem.core.culprit"])
def test_a_scan_of_a_healthy_run_does_not_import(unused: str) -> None:
    """Each of these takes longer to import than such a run takes to be judged."""
    scan = "import sys; from postmortem import api; api.scan('sample_runs/healthy-cosine-restarts')"
    code = f"{scan}; sys.exit({unused!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
