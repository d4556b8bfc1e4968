"""Frames, segments and the points that were not overwritten."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from postmortem.core.points import PointsBuilder
from postmortem.core.run import EVENT_COLUMNS, Run, Stream, segments
from postmortem.core.view import View


def make_run(*streams: tuple[str, list[tuple[str, int, float]]]) -> Run:
    built = []
    for source, rows in streams:
        builder = PointsBuilder()
        for tag, step, value in rows:
            builder.add(tag, step, value)
        points = builder.build()
        built.append(Stream(source, source, points, *segments(points)))
    return Run(name="r", path=Path("r"), streams=built, event_list=[], problems=[], sources=[])


def test_empty_run_has_all_columns():
    """Frames of a run without data are empty and have every column with its type."""
    run = make_run()
    assert [*run.frame.columns] == ["run", "source", "rank", "segment", "tag", "step", "wall_time", "value"]
    assert tuple(run.events.columns) == EVENT_COLUMNS
    assert len(run.frame) == len(run.events) == 0


def test_frame_types_and_exact_values():
    """Types are as documented; NaN and both infinities survive; order of arrival is kept."""
    run = make_run(("csv", [("a", 1, math.nan), ("b", 1, math.inf), ("a", 2, -math.inf), ("a", 3, 0.1)]))
    assert {c: str(t) for c, t in run.frame.dtypes.items()} == {
        "run": "category",
        "source": "category",
        "rank": "int16",
        "segment": "int16",
        "tag": "category",
        "step": "int64",
        "wall_time": "float64",
        "value": "float64",
    }
    assert run.frame["tag"].tolist() == ["a", "b", "a", "a"]
    np.testing.assert_array_equal(run.frame["value"], [math.nan, math.inf, -math.inf, 0.1])


def test_a_restart_opens_a_segment_for_all_tags():
    """Steps that go back open one new segment, whatever number of tags goes back with them."""
    rows = [(tag, step, float(step)) for step in [*range(0, 100, 10), *range(50, 120, 10)] for tag in ("loss", "lr")]
    run = make_run(("csv", rows))
    assert run.frame.groupby("segment", observed=True).size().tolist() == [20, 14]
    (restart,) = View(run).restarts
    assert (restart.tag, restart.before, restart.after) == ("loss", 90, 50)


def test_surviving_history():
    """What a later segment wrote again replaces the earlier values; what it did not reach stays."""
    rows = [("loss", s, 1.0) for s in range(10)] + [("loss", s, 2.0) for s in range(5, 8)]
    (series,) = View(make_run(("csv", rows))).series
    assert series.step.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert series.value.tolist() == [1.0] * 5 + [2.0] * 3


def test_a_row_out_of_order_is_no_restart():
    """One row that comes late, after which the steps go on, opens no segment."""
    run = make_run(("csv", [("loss", s, 1.0) for s in (0, 10, 20, 15, 30, 40)]))
    assert View(run).restarts == []


def test_a_step_that_was_misread_is_no_restart():
    """One step far above all around it is a torn row; a resume after a step that is one interval ahead is one."""
    for stray, restarts in ((455, 0), (40, 1)):
        steps = [*range(20), stray, *range(20, 40)] if not restarts else [*range(0, 50, 10), 35, 38, 39, 50, 60]
        assert len(make_run(("text", [("loss", step, 1.0) for step in steps])).streams[0].restarts) == restarts


def test_counters_do_not_make_restarts():
    """Where tags with a role go on, a counter that goes back once is no restart."""
    rows = [(t, s, 1.0) for s in range(0, 50, 10) for t in ("loss", "preemption_count")] + [
        ("preemption_count", 20, 1.0)
    ]
    assert View(make_run(("csv", rows))).restarts == []


def test_one_number_from_two_sources_counts_once():
    """The same loss in an event file and, rounded and longer, in a text is one series with the text's last steps."""
    precise = [("train/loss", s, 2.0 - s / 1000) for s in range(0, 100, 10)]
    rounded = [("loss", s, round(2.0 - s / 1000, 2)) for s in range(0, 130, 10)]
    (series,) = View(make_run(("tensorboard", precise), ("text", rounded))).series
    assert series.tag == "train/loss"
    assert series.step.tolist() == list(range(0, 130, 10))
    assert series.value[1] == 1.99


def test_different_losses_stay_apart():
    """Two losses of different value in two sources are two series."""
    run = make_run(
        ("tensorboard", [("loss_a", s, 1.0) for s in range(9)]), ("text", [("loss_b", s, 3.0) for s in range(9)])
    )
    assert len(View(run).series) == 2


@example([("loss", 1, 0.0), ("lr", 2**63 - 1, 0.0), ("loss", 0, 0.0), ("lr", 2**63 - 1, 0.0)])
@given(
    st.lists(
        st.tuples(st.sampled_from(["loss", "lr", "x"]), st.integers(-(2**63), 2**63 - 1), st.floats()), max_size=60
    )
)
def test_any_points_make_a_run(rows):
    """Whatever the steps and values: every row is in the frame, series have rising steps, segments never fall."""
    run = make_run(("csv", rows))
    assert len(run.frame) == len(rows)
    assert (np.diff(run.frame["segment"]) >= 0).all()
    for series in View(run).series:
        assert (series.step[1:] >= series.step[:-1]).all()


def test_the_largest_step_after_a_restart():
    """A step at the limit of int64, to which damaged ones are clamped, is no point that a restart wrote again."""
    steps = [*range(20), *range(10, 20), 2**63 - 1]
    run = make_run(("csv", [("lr", step, 1.0) for step in steps]))
    assert run.frame["segment"].max() == 1
    (lr,) = View(run).series
    assert lr.step.tolist() == [*range(20), 2**63 - 1]
