"""`distinct` and `without` give what numpy's functions of sets give, and do not load numpy.ma."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from postmortem.core.distinct import distinct, occurrences, without

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_scan_of_a_healthy_run_does_not_import_what_it_does_not_need(tmp_path: Path) -> None:
    """Each of these takes longer to import than such runs, an event file and a table, take to be judged."""
    shutil.copytree("sample_runs/healthy-cosine-restarts", tmp_path / "a")
    (tmp_path / "b.csv").write_text("step,loss,lr\n" + "".join(f"{i},{2 / (1 + i):.4f},0.001\n" for i in range(50)))
    unused = ("numpy.ma", "importlib.metadata", "pandas", "postmortem.core.culprit")
    code = (
        "import sys; from postmortem.cli.main import main\n"
        f"try: main(['scan', '--no-cache', {str(tmp_path)!r}])\n"
        f"finally: print('loaded:', *[name for name in {unused!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines()[-1] == "loaded:", done.stdout + done.stderr
