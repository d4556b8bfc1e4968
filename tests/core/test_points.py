"""Numbers that were printed in rows are the same columns as numbers that were not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from postmortem.core.points import Points

ROW = st.tuples(st.integers(0, 4), st.integers(-(2**62), 2**62), st.floats(), st.integers(-1, 9))


@given(rows=st.lists(ROW), seed=st.integers(0, 99))
def test_rows_are_columns(rows: list[tuple[int, int, float, int]], seed: int) -> None:
    """Whole columns and parts of them, whichever is asked for first."""
    count = np.array([r[0] for r in rows], np.uint16)
    columns = {
        "step": np.array([r[1] for r in rows], np.int64),
        "wall_time": np.array([r[2] for r in rows], np.float64),
        "rank": np.array([r[3] for r in rows], np.int16),
    }
    n = int(count.sum())
    rng = np.random.default_rng(seed)
    points = Points.of_rows(["a", "b"], rng.integers(0, 2, n).astype(np.int32), rng.normal(size=n), count, **columns)
    some = rng.integers(0, n, 5) if n else np.empty(0, np.intp)
    for name, column in columns.items():
        whole = np.repeat(column, count)
        for which in (some, slice(-3, None), rng.random(n) < 0.5):
            np.testing.assert_array_equal(points.take(name, which), whole[which])
        found = getattr(points, name)
        np.testing.assert_array_equal(found, whole)
        assert found.dtype == column.dtype
        np.testing.assert_array_equal(points.take(name, some), whole[some])
    points.rank = np.zeros(n, np.int16)
    assert not points.take("rank", some).any()
