"""Tables of metrics that the user has at hand as a pandas DataFrame."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.runs.frames import runs_of

N = 200
STEPS = np.arange(N)
LOSS = 2 * np.exp(-STEPS / 60) + 0.3 + 0.01 * np.sin(7 * STEPS)


def wide(loss: np.ndarray = LOSS) -> pd.DataFrame:
    """A loss at every step, a validation loss at each fiftieth, a constant rate."""
    return pd.DataFrame(
        {"step": STEPS, "train/loss": loss, "val/loss": np.where(STEPS % 50 == 0, LOSS, np.nan), "lr": 1e-3}
    )


def with_nan(first: int = 120) -> np.ndarray:
    return np.where(first <= STEPS, np.nan, LOSS)


@pytest.mark.parametrize(
    "shape",
    [
        lambda f: f,
        lambda f: f.set_index("step"),
        lambda f: f.rename(columns={"step": "global_step"}),
        lambda f: f.melt(id_vars="step", var_name="metric"),
        lambda f: (
            f.melt(id_vars="step", var_name="tag").dropna(subset="value").pipe(lambda g: pd.concat([g, nan_rows()]))
        ),
        lambda f: f.astype({"train/loss": "float32"}).astype({"lr": object}),
        lambda f: f.assign(time=pd.Timestamp("2025-01-01") + pd.to_timedelta(f["step"], "s")),
        lambda f: f.set_axis(
            pd.MultiIndex.from_tuples([("step", ""), ("train", "loss"), ("val", "loss"), ("lr", "")]), axis=1
        ),
    ],
    ids=["wide", "index", "global_step", "long", "long-without-empty", "types", "times", "levels"],
)
def test_a_nan_is_found_at_its_step_whatever_the_shape(shape):
    """Wide or long, step as a column or the index: the same finding; empty cells of a rare metric are none."""
    (run,) = postmortem.scan(shape(wide(with_nan()))).runs
    assert run.verdict == "failed"
    assert [(f.name, f.step) for f in run.findings] == [("nan-onset", 120)]
    assert run.run is not None
    assert len(run.run.series("lr")) == N


def nan_rows() -> pd.DataFrame:
    return pd.DataFrame({"step": STEPS[120:], "tag": "train/loss", "value": np.nan})


def test_empty_cells_are_no_nan():
    """A metric that is logged rarely, and rows of evaluations between those of the training, are healthy."""
    rows = []
    for step in range(N):
        rows.append({"step": step, "train_loss": LOSS[step], "lr": 1e-3})
        if step % 10 == 9:
            rows.append({"step": step, "val_loss": LOSS[step] + 0.1})
    for frame in (wide(), pd.DataFrame(rows), pd.DataFrame(rows).melt(id_vars="step").sort_values("step")):
        (run,) = postmortem.scan(frame).runs
        assert (run.verdict, run.findings) == ("healthy", ())
    (run,) = postmortem.scan(wide()).runs
    assert "val/loss: NaN in 196 rows is taken as an empty cell" in run.notes


def test_a_column_of_runs_makes_several():
    """Each run is judged by itself, under its name."""
    frame = pd.concat([wide().assign(run="good"), wide(with_nan()).assign(run="bad")])
    report = postmortem.scan(frame)
    assert {run.name: run.verdict for run in report} == {"good": "healthy", "bad": "failed"}
    with pytest.raises(postmortem.UsageError, match="holds 2 runs"):
        postmortem.judge(frame)


def test_the_frame_of_a_run_comes_back(sample_runs):
    """What `load` returned is the same run again: findings, series, restarts."""
    for name in ("restart", "diverged-lr"):
        run = postmortem.load(sample_runs / name)
        again = postmortem.judge(run.frame)
        first = postmortem.judge(run)
        of_log = [f for f in first.findings if f.tag is not None]
        assert [(f.code, f.tag, f.step) for f in again.findings] == [(f.code, f.tag, f.step) for f in of_log]
        pd.testing.assert_frame_equal(run.pivot(), again.run.pivot(), check_like=True)


def test_advice_for_a_table_names_no_command_on_files():
    """There is no run folder that could be replayed."""
    (run,) = postmortem.scan(wide(with_nan())).runs
    assert run.diagnosis is not None
    assert run.diagnosis.next
    assert not any("postmortem replay" in action for action in run.diagnosis.next)


def test_two_tables_are_compared():
    """The step at which they part."""
    other = wide()
    other.loc[77:, "train/loss"] += 0.5
    found = postmortem.compare(wide(), other)
    assert found.first is not None
    assert (found.first.tag, found.first.exact_step) == ("train/loss", 77)


def test_a_table_without_steps_is_refused_in_one_line():
    """The message lists its columns."""
    with pytest.raises(postmortem.UsageError, match=r"no step column .*: a, b"):
        postmortem.scan(pd.DataFrame({"a": [1.0], "b": [2.0]}))


cells = st.one_of(st.none(), st.floats(), st.text(max_size=4), st.booleans(), st.integers(), st.just(pd.NaT))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, cells, cells, cells), max_size=8), st.permutations(["step", "loss", "tag", "value"]))
def test_no_table_breaks_a_scan(rows, names):
    """Any cells under any names give runs, or one line that says what is missing."""
    frame = pd.DataFrame(rows, columns=names)
    for run in runs_of(frame):
        assert run.n_points == len(run.frame)
