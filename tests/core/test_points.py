"""Numbers that were printed in rows are the same columns as numbers that were not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmortem.core.points import Points, PointsBuilder

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


@pytest.mark.parametrize("how", ["add", "extend", "extend array", "extend_columns"])
@pytest.mark.parametrize("value", [2**63, 2**80, 1e30, np.inf])
def test_a_step_beyond_int64(how: str, value: float) -> None:
    """It becomes the limit of int64 in each way of adding points; the other points are unchanged."""
    steps = [3, value, -value, -(2**63), 2**63 - 1]
    builder = PointsBuilder()
    if how == "add":
        for step in steps:
            builder.add("loss", step, 1.0)  # type: ignore[arg-type]
    elif how == "extend_columns":
        builder.extend_columns(["loss"], [0] * 5, steps, np.ones(5))
    else:
        given = np.array(steps, np.float64 if isinstance(value, float) else object) if "array" in how else steps
        builder.extend("loss", given, np.ones(5))
    low, high = -(2**63), 2**63 - 1
    assert builder.build().step.tolist() == [3, high, low, low, high]


def test_steps_are_kept_exactly() -> None:
    """Integers of any width are the same after they were added; a fraction of a step is cut off."""
    builder = PointsBuilder()
    for dtype in (np.int8, np.int64, np.uint64, np.float32):
        builder.extend("loss", np.array([0, 1, 127], dtype), np.ones(3))
    builder.extend("loss", np.array([2**53 + 1]), np.ones(1))
    builder.extend("loss", [1.9], np.ones(1))
    assert builder.build().step.tolist() == [0, 1, 127] * 4 + [2**53 + 1, 1]
