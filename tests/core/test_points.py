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


@given(rows=st.lists(ROW), pack=st.booleans())
def test_cells_are_the_numbers_that_points_have(rows: list[tuple[int, int, float, int]], pack: bool) -> None:
    """Those of rows without a point are none; what `pack` drops is worked out again."""
    count = np.array([r[0] for r in rows], np.uint16)
    step = np.array([r[1] for r in rows], np.int64)
    nothing = np.full(len(rows), -1, np.int16)
    n = int(count.sum())
    points = Points.of_rows(["a"], np.zeros(n, np.int32), np.zeros(n), count, step, nothing.astype(float), nothing)
    assert points.take("step", slice(None)).tolist() == np.repeat(step, count).tolist()
    if pack:
        points.pack()
    assert set(points.cells("step").tolist()) == set(points.take("step", slice(None)).tolist())
    assert set(points.step.tolist()) == set(points.cells("step").tolist())


@given(codes=st.lists(st.integers(0, 6), max_size=60), ranks=st.lists(st.integers(-1, 2), min_size=60, max_size=60))
def test_many_points_are_sorted_in_pieces(codes: list[int], ranks: list[int]) -> None:
    """By tag and rank, in order of arrival, as by one sort."""
    n = len(codes)
    columns = np.arange(n), np.zeros(n), np.zeros(n), np.array(ranks[:n], np.int16)
    points = Points([f"tag{i}" for i in range(7)], np.array(codes, np.int32), *columns)
    plain_order, plain_bounds = points.by_tag_and_rank()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("postmortem.core.points._SORTED_AT_ONCE", 8)
        order, bounds = points.by_tag_and_rank()
    assert (order.tolist(), bounds.tolist()) == (plain_order.tolist(), plain_bounds.tolist())


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3), st.floats())), one_rank=st.booleans())
def test_sorted_numbers_are_the_same(rows: list[tuple[int, int, float]], one_rank: bool) -> None:
    """Once they are stored by tag and rank, the numbers are found in order of arrival as before, also in a copy and
    after the ranks were set."""
    code, value = np.array([r[0] for r in rows], np.int32), np.array([r[2] for r in rows], np.float64)
    rank = np.array([0 if one_rank else r[1] for r in rows], np.int16)
    points = Points(["a", "b", "c", "d"], code, np.arange(len(rows)), value.copy(), np.zeros(len(rows)), rank)
    order, _ = points.by_tag_and_rank()
    for _ in range(2):
        np.testing.assert_array_equal(points.sort_values(order), value[order])
    np.testing.assert_array_equal(points.value, value)
    points.rank = np.zeros(len(rows), np.int16)
    for same in (points, points.copy(), points.chosen(np.ones(len(rows), bool))):
        np.testing.assert_array_equal(same.value, value)
    order, _ = points.by_tag_and_rank()
    np.testing.assert_array_equal(points.sort_values(order), value[order])
