"""Tables of metrics: which column is the step, cells that are absent, torn lines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.core.reading import Reading
from postmortem.readers import csv_table
from postmortem.readers.csv_table import CsvTable
from postmortem.readers.shared import step_column
from tests.readers.cases import usual_name

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@usual_name(CsvTable)
def name_of_a_file() -> str:
    return "metrics.csv"


def read(path: Path, text: str | bytes) -> Reading:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return CsvTable.read(path)


def column(reading: Reading, tag: str) -> list[tuple[int, float]]:
    points = reading.points
    code = points.tags.index(tag)
    return [(int(s), float(v)) for c, s, v in zip(points.code, points.step, points.value, strict=True) if c == code]


CELLS = st.sampled_from(["1", "-2.5e3", "nan", "-inf", "1_000", "81.25%", "tensor(0.5)", "", "n/a", "x", " 7 "])


@QUICK
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
def test_a_cell_means_the_same_in_every_row(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    """A row of plain numbers is read in a shorter way; beside a cell of text it is not: the points are the same."""
    short = read(tmp_path / "a.csv", "step,loss,acc\n" + "".join(f"{i},{a},{b}\n" for i, (a, b) in enumerate(rows)))
    text = "step,loss,acc,word\n" + "".join(f"{i},{a},{b},word\n" for i, (a, b) in enumerate(rows))
    slow = read(tmp_path / "b.csv", text)
    for tag in ("loss", "acc"):
        if tag in slow.points.tags or tag in short.points.tags:
            assert repr(column(short, tag)) == repr(column(slow, tag))
    assert short.blanks == slow.blanks


def test_lightning(tmp_path: Path) -> None:
    """Sparse cells are absent, not NaN; a literal nan is a number; epoch stays a tag."""
    text = "epoch,step,train_loss,val_loss\n0,49,0.5,\n0,99,nan,\n0,99,,0.7\n1,149,-inf,\n"
    reading = read(tmp_path / "metrics.csv", text)
    assert column(reading, "val_loss") == [(99, 0.7)]
    train = column(reading, "train_loss")
    assert [s for s, _ in train] == [49, 99, 149]
    assert math.isnan(train[1][1])
    assert train[2][1] == -math.inf
    assert column(reading, "epoch") == [(49, 0.0), (99, 0.0), (99, 0.0), (149, 1.0)]
    assert (reading.step_axis, reading.problems, reading.skipped) == ("step", [], {})


def test_ultralytics(tmp_path: Path) -> None:
    """Padded header names are trimmed, and the epoch is the step where there is one row for each."""
    text = "                  epoch,         train/box_loss,      metrics/mAP50(B)\n" + "".join(
        f"{i:>22},{1 / i:>22.4f},{i / 10:>22}\n" for i in (1, 2, 3)
    )
    reading = read(tmp_path / "results.csv", text)
    assert column(reading, "train/box_loss") == [(1, 1.0), (2, 0.5), (3, 0.3333)]
    assert reading.step_axis == "epoch"


@pytest.mark.parametrize(
    ("header", "rows", "steps", "axis"),
    [
        ("Step,loss", ["5,1", "10,1"], [5, 10], "Step"),
        ("iter,global_step,loss", ["0,7,1", "1,8,1"], [7, 8], "global_step"),
        ("time/total_timesteps,loss", ["2048,1", "4096,1"], [2048, 4096], "time/total_timesteps"),
        ("epoch,iter,loss", [f"{e},{i},1" for e in (1, 2, 3) for i in (10, 20)], [10, 20, 30, 40, 50, 60], "iter"),
        ("epoch,batch,loss", [f"{e},{i},1" for e in (0, 1) for i in (0, 1, 2)], [0, 1, 2, 3, 4, 5], "batch"),
        ("global_step,loss", [f"{i},1" for i in [0, 10, 20, 30] * 3], [0, 10, 20, 30] * 3, "global_step"),
        ("iter,loss", [f"{i},1" for i in [0, 1, 2, 3] * 3], list(range(12)), "row"),
        ("loss,lr", ["3,1", "2,1"], [0, 1], "row"),
        ("epoch,loss", ["1,1", "2,1", "1,1", "2,1"], [1, 2, 1, 2], "epoch"),
        ("step,loss", ["0.5,1", "0.7,1"], [0, 1], "row"),
    ],
)
def test_step_axis(tmp_path: Path, header: str, rows: list[str], steps: list[int], axis: str) -> None:
    """The column that counts is the step, a counter within epochs is put together with them, and a note says what was
    taken."""
    reading = read(tmp_path / "t.csv", "\n".join([header, *rows]) + "\n")
    assert [s for s, _ in column(reading, "loss")] == steps
    assert reading.step_axis == axis
    assert len(reading.notes) == 1


def test_a_restart_keeps_its_steps(tmp_path: Path) -> None:
    """Steps that go back once, under a header line that comes again, are kept as they stand."""
    text = (
        "step,loss\n"
        + "".join(f"{i},1\n" for i in range(0, 500, 5))
        + "step,loss,lr\n"
        + "".join(f"{i},1,0.1\n" for i in range(300, 600, 5))
    )
    reading = read(tmp_path / "t.csv", text)
    assert [s for s, _ in column(reading, "loss")] == [*range(0, 500, 5), *range(300, 600, 5)]
    assert len(column(reading, "lr")) == 60
    assert reading.problems == []


def test_wall_time_and_rank(tmp_path: Path) -> None:
    """Plausible times become the wall time, in seconds, milliseconds or ISO form; durations stay a tag; a rank is no
    tag."""
    reading = read(tmp_path / "a.csv", "Wall time,Step,Value\n1700000000.5,1,0.1\n1700000001.5,2,0.2\n")
    assert list(reading.points.wall_time) == [1700000000.5, 1700000001.5]
    assert reading.points.tags == ["Value"]
    reading = read(tmp_path / "b.csv", "timestamp,rank,step,loss\n1700000000500,3,1,0.1\n")
    assert (list(reading.points.wall_time), list(reading.points.rank), reading.points.tags) == (
        [1700000000.5],
        [3],
        ["loss"],
    )
    reading = read(tmp_path / "c.csv", "time,step,loss\n2023-11-14 22:13:20,1,0.1\n")
    assert list(reading.points.wall_time) == [1.7e9]
    assert reading.started == 1.7e9
    reading = read(tmp_path / "d.csv", "time,step,loss\n0.25,1,0.1\n")
    assert reading.points.tags == ["time", "loss"]
    assert math.isnan(reading.points.wall_time[0])


def test_text_columns_are_counted(tmp_path: Path) -> None:
    """Words are no numbers and are counted; marks of absence are not; quotes and tabs are understood."""
    reading = read(tmp_path / "t.tsv", 'step\tnote\tloss\n1\ttrain\t0.5\n2\t"a\tb"\tNone\n3\tN/A\tInfinity\n')
    assert column(reading, "loss") == [(1, 0.5), (3, math.inf)]
    assert reading.skipped == {"non-numeric cells": 2}
    assert "note" in reading.notes[1]


def test_torn_lines(tmp_path: Path) -> None:
    """A line cut short keeps its whole cells and is a Problem with its line; one in the middle too."""
    reading = read(tmp_path / "t.csv", "step,loss,lr\n1,0.5,0.1\n2,0.4\n3,0.3,0.1,9\n4,0.1")
    assert column(reading, "loss") == [(1, 0.5), (3, 0.3)]
    assert [(p.line, p.what.split(":")[0]) for p in reading.problems] == [
        (3, "2 cells in this line, 3 in the header"),
        (4, "4 cells in this line, 3 in the header"),
        (5, "truncated"),
    ]


def test_encodings(tmp_path: Path) -> None:
    """UTF-16 and byte order marks are read, NUL bytes and broken UTF-8 are Problems and cost nothing else."""
    text = "step,loss\r\n1,0.5\r\n2,0.25\r\n"
    for data in (text.encode("utf-16"), text.encode("utf-8-sig")):
        reading = read(tmp_path / "t.csv", data)
        assert column(reading, "loss") == [(1, 0.5), (2, 0.25)]
        assert reading.problems == []
    reading = read(tmp_path / "t.csv", b"step,loss,note\n1,0.5,\xff\n\0\0\0\n2,0.25,ok\n")
    assert column(reading, "loss") == [(1, 0.5), (2, 0.25)]
    assert len(reading.problems) == 2


@pytest.mark.parametrize("text", [b"", b"\n\n", b"\r\n  \n"])
def test_empty(tmp_path: Path, text: bytes) -> None:
    """A file without a line says so."""
    reading = read(tmp_path / "t.csv", text)
    assert len(reading.points) == 0
    assert "empty" in reading.problems[0].what


@pytest.mark.parametrize(
    ("name", "head", "claimed"),
    [
        ("metrics.csv", b"epoch,step,loss\n0,1,2\n", True),
        ("metrics.csv", b"epoch,step,loss\n", True),
        ("x.csv", b"Step,mystery\n1,2\n", True),
        ("x.tsv", b"epoch\tacc\n1\t2\n", True),
        ("data.csv", b"id,text,label\n1,hello,0\n", False),
        ("data.csv", b"1,2,3\n4,5,6\n", False),
        ("data.csv", b"step,instruction\nfirst,open\n", False),
        ("data.csv", b"", False),
        ("metrics.txt", b"epoch,step,loss\n0,1,2\n", False),
    ],
)
def test_claims(tmp_path: Path, name: str, head: bytes, claimed: bool) -> None:
    """Tables of metrics are claimed, data sets are not."""
    assert CsvTable.claims(tmp_path / name, head) is claimed


@QUICK
@given(st.integers(0, 10**6))
def test_cut_anywhere(tmp_path: Path, cut: int) -> None:
    """A table cut at any byte keeps all rows before the cut, and nothing is raised."""
    whole = "step,loss,lr\n" + "".join(f"{i},{1 / (i + 1)},1e-05\n" for i in range(9))
    cut %= len(whole)
    reading = read(tmp_path / "t.csv", whole[:cut])
    complete = max(0, whole[:cut].count("\n") - 1)
    got = dict(column(reading, "loss")) if "loss" in reading.points.tags else {}
    assert all(got[i] == 1 / (i + 1) for i in range(complete))
    last = whole[:cut].rpartition("\n")[2]
    if complete and last and last.count(",") < 2:
        assert reading.problems[-1].what.startswith("truncated")


@QUICK
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    """Any bytes behind a header are read without an exception, and the good rows around them survive."""
    reading = read(tmp_path / "t.csv", b"step,loss\n1,0.5\n" + data + b"\n7,0.25\n")
    if reading.points.tags:
        assert 0.5 in reading.points.value


@pytest.mark.parametrize("wrong", ["-99999999999999999999", "1e300", "17.5", "-3", "inf"])
def test_a_row_with_an_impossible_step_is_left_out(tmp_path, wrong):
    """One damaged step makes no other axis of the column: its row is left out and said, the others keep their steps."""
    rows = [f"{wrong if step == 500 else step},{2 - 0.001 * step}" for step in range(0, 1000, 10)]
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "\n".join(rows) + "\n")
    reading = CsvTable.read(path)
    assert reading.step_axis == "step"
    assert reading.points.step.tolist() == [step for step in range(0, 1000, 10) if step != 500]
    (problem,) = reading.problems
    assert "row 51" in problem.what
    assert problem.lost == "1 row"


def test_a_column_of_many_impossible_steps_counts_nothing(tmp_path):
    """Where every tenth number of a column is no step, the column is none."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "\n".join(f"{-1 if i % 10 == 5 else i},{2 - 0.001 * i}" for i in range(100)) + "\n")
    assert CsvTable.read(path).step_axis == "row"


def test_a_torn_line_does_not_decide_what_the_steps_are(tmp_path: Path) -> None:
    """Where lines are lost, the seam makes a row whose step belongs to neither half: it is left out, and reported."""
    lines = [f"{step // 100},{step},{3 - step / 200:.3f},0.1" for step in range(400)]
    text = "\n".join(["epoch,step,loss,lr", *lines[:290], "2,27200,1.073", *lines[315:], ""])
    reading = read(tmp_path / "metrics.csv", text)
    points = column(reading, "loss")
    assert (points[0][0], points[-1][0], len(points)) == (0, 399, 375)
    assert any("no valid step" in p.what for p in reading.problems)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("at", [5, 77, 119, 120, 199])
@pytest.mark.parametrize("row", ["3,272010.5123,0.001", "3,27201,0.5123,0.001", "3,-1,0.5123,0.001"])
def test_no_row_decides_alone_how_long_an_epoch_is(tmp_path: Path, row: str, at: int, first: int) -> None:
    """A torn or damaged row among rows that count batches of an epoch is left out and reported; the others keep their
    steps."""
    lines = [f"{i // 20},{i % 20 + first},{3 - i / 200:.3f},0.1" for i in range(200)]
    lines[at] = row
    reading = read(tmp_path / "metrics.csv", "\n".join(["epoch,batch,loss,lr", *lines, ""]))
    assert column(reading, "loss") == [(i + first, round(3 - i / 200, 3)) for i in range(200) if i != at]
    assert any("no valid step" in p.what for p in reading.problems)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("tensor(0.5)", 0.5),
        ('"tensor(0.5, grad_fn=<MeanBackward0>)"', 0.5),
        ("np.float32(0.5)", 0.5),
        ("0.5%", 0.5),
        ("[0.5]", None),
    ],
)
def test_numbers_as_python_prints_them(cell: str, value: float | None, tmp_path: Path) -> None:
    """A tensor or a numpy scalar that was written without .item() is the number in it."""
    reading = read(tmp_path / "t.csv", "step,loss\n1,0.75\n" + f"2,{cell}\n3,0.25\n")
    assert dict(column(reading, "loss")).get(2) == value
    assert [p.lost for p in reading.problems] == ([] if value is not None else ["1 value of loss"])


@pytest.mark.parametrize("wrong", ["#REF!", "?!", '"0,4"', "0.4.1"])
def test_cells_of_a_column_of_numbers_that_cannot_be_read_are_lost(wrong: str, tmp_path: Path) -> None:
    """They are counted and said, and the column keeps its numbers; a column of text is only noted."""
    rows = [f"{i},{wrong if i >= 10 else 1 / (i + 1)},ok\n" for i in range(25)]
    reading = read(tmp_path / "t.csv", "step,loss,note\n" + "".join(rows))
    assert len(column(reading, "loss")) == 10
    (problem,) = reading.problems
    assert (problem.line, problem.lost) == (12, "15 values of loss")
    assert wrong.strip('"') in problem.what
    assert reading.skipped == {"non-numeric cells": 25}


@pytest.mark.parametrize("text", ["0:{i:02d}:26", "1 day, 0:{i:02d}:26", "{i}.5 GB"])
def test_times_and_sizes_with_units_are_text(text: str, tmp_path: Path) -> None:
    """A column of them is written so on purpose: nothing is lost."""
    rows = [f"{i},{1 / (i + 1)},{text.format(i=i)}\n".replace("1 day,", "1 day") for i in range(25)]
    for name in ("elapsed_time", "memory"):
        reading = read(tmp_path / "t.csv", f"step,loss,{name}\n" + "".join(rows))
        assert not reading.problems
        assert reading.skipped == {"non-numeric cells": 25}


def test_decimal_commas(tmp_path: Path) -> None:
    """Between semicolons a comma is the decimal point, unless the file has points as well."""
    reading = read(tmp_path / "t.csv", "step;loss\n1;0,5\n2;2,5e-1\n")
    assert column(reading, "loss") == [(1, 0.5), (2, 0.25)]
    reading = read(tmp_path / "t.csv", "step;loss\n1;0.5\n2;0,25\n")
    assert [p.lost for p in reading.problems] == ["1 value of loss"]


def test_a_missing_line_end_is_noted(tmp_path: Path) -> None:
    """Also where the last row is whole by those before it: tables, and texts."""
    rows = "".join(f"{i},{1 / (i + 1):.4f}\n" for i in range(30))
    assert not [note for note in read(tmp_path / "t.csv", "step,loss\n" + rows).notes if "no line end" in note]
    assert [note for note in read(tmp_path / "t.csv", "step,loss\n" + rows[:-1]).notes if "no line end" in note]
    (tmp_path / "train.log").write_text("".join(f"step {i} loss {1 / (i + 1):.4f}\n" for i in range(30))[:-1])
    assert [note for note in postmortem.load(tmp_path / "train.log").notes if "no line end" in note]


@pytest.mark.parametrize("decimals", [None, 5])
@pytest.mark.parametrize("header", ["step,lr,loss", "loss,lr,step"])
def test_a_last_cell_that_may_be_cut_is_no_value(header: str, decimals: int | None, tmp_path: Path) -> None:
    """Wherever the last row is cut, no number of it is wrong, and a cut is said; without a cut nothing is lost."""
    loss = [1 / (i + 3) for i in range(40)]
    cells = [{"step": i * 10, "lr": 0.001, "loss": x if decimals is None else f"{x:.5f}"} for i, x in enumerate(loss)]
    text = "\n".join([header, *(",".join(str(row[name]) for name in header.split(",")) for row in cells), ""])
    whole = column(read(tmp_path / "t.csv", text), "loss")
    assert len(whole) == 40
    start = text.rindex("\n", 0, -1) + 1
    for cut in range(start, len(text)):
        reading = read(tmp_path / "t.csv", text[:cut])
        assert column(reading, "loss") in (whole, whole[:-1])
        complete = len(column(reading, "loss")) == 40 or cut == start
        assert bool(reading.problems) != complete or cut == len(text) - 1
    if decimals is None or header.endswith("step"):
        return
    assert (column(reading, "loss"), reading.problems) == (whole, [])


@pytest.mark.parametrize(("name", "first"), [("i", 0), ("t", 100), ("n", 7)])
def test_a_short_name_that_never_falls_counts_steps(tmp_path: Path, name: str, first: int) -> None:
    """`i` counts where it rises, also if a row was written twice at a resume; an index that starts again does not."""
    steps = [first + 100 * k for k in range(300)]
    steps.insert(150, steps[150])
    log = tmp_path / "log.csv"
    log.write_text(f"{name},loss\n" + "".join(f"{s},{1 / (k + 1):.4f}\n" for k, s in enumerate(steps)))
    assert postmortem.load(log).frame["step"].tolist() == steps
    log.write_text(f"{name},loss\n" + "".join(f"{k % 50},{1 / (k + 1):.4f}\n" for k in range(300)))
    again = postmortem.load(log).frame.query("tag == 'loss'")
    assert again["step"].tolist() == list(range(300))


def test_a_long_table(tmp_path: Path) -> None:
    """A row for each metric of each split: the columns name the data and the metric."""
    rows = ["step,split,metric,value"]
    for step in range(0, 50, 10):
        rows += [f"{step},train,loss,{2 - step / 50}", f"{step},valid,loss,{3 - step / 50}", f"{step},train,lr,0.1"]
    reading = read(tmp_path / "log.csv", "\n".join(rows) + "\n")
    assert column(reading, "loss") == [(step, 2 - step / 50) for step in range(0, 50, 10)]
    assert column(reading, "valid/loss") == [(step, 3 - step / 50) for step in range(0, 50, 10)]
    assert column(reading, "lr") == [(step, 0.1) for step in range(0, 50, 10)]


def test_german_columns(tmp_path: Path) -> None:
    """Counters in other languages count, too."""
    rows = [
        "Schritt;Zyklus;Lernrate;Verlust",
        *(f"{15 * i};1;0,1;{2 - i / 10:.1f}".replace(".", ",") for i in range(9)),
    ]
    reading = read(tmp_path / "Protokoll.csv", "\n".join(rows) + "\n")
    assert column(reading, "Verlust") == [(15 * i, round(2 - i / 10, 1)) for i in range(9)]


@pytest.mark.parametrize("damaged", [27201, 3])
def test_one_damaged_step_is_no_restart(damaged: int, tmp_path: Path) -> None:
    """A single row whose step lies far off costs that row, and renumbers no other."""
    steps = [i * 10 for i in range(300)]
    steps[150] = damaged
    (tmp_path / "metrics.csv").write_text(
        "step,loss\n" + "".join(f"{s},{1 / (i + 1):.5f}\n" for i, s in enumerate(steps))
    )
    reading = CsvTable.read(tmp_path / "metrics.csv")
    assert reading.points.step.tolist() == steps[:150] + steps[151:]
    assert [problem.lost for problem in reading.problems] == ["1 row"]


def test_gyms_monitor(tmp_path: Path) -> None:
    """A line of JSON comes before the header; the reward is named by one letter, and no step is printed."""
    path = tmp_path / "0.monitor.csv"
    rows = "".join(f"{i}.0,{i},{i / 9:.3f}\n" for i in range(30))
    path.write_text('#{"t_start": 1561465272.1, "env_id": "Pole-v1"}\nr,l,t\n' + rows)
    assert CsvTable.claims(path, path.read_bytes())
    run = postmortem.load(path)
    assert run.roles == {"r": "reward", "l": None, "t": None}
    assert run.frame.value[run.frame.tag == "r"].tolist() == list(range(30))
    assert not CsvTable.claims(path, b"a,b,c\n1,2,3\n")


@pytest.mark.parametrize(
    ("header", "cells", "verdict"),
    [
        ("filename,dice,recall", "test_{i}.png,{v},{n}", "not-judged"),
        ("date,model_type,score,params", "2026-03-01 12:00:0{i},mlp {i},{n},None", "not-judged"),
        ("epoch,filename,dice", "{i},ckpt_{i}.pt,{v}", "healthy"),
        ("time,dice,loss", "2026-03-01 12:00:0{i},{v},{v}", "healthy"),
    ],
)
def test_a_table_of_results_is_not_judged_as_a_training(tmp_path: Path, header: str, cells: str, verdict: str) -> None:
    """Its rows are things, not steps: the NaN of one model is no event of a training."""
    rows = [cells.format(i=i, v=0.5 + i / 50, n="nan" if i == 4 else 0.5 + i / 90) for i in range(9)]
    (tmp_path / "results.csv").write_text("\n".join([header, *rows]) + "\n")
    (report,) = postmortem.scan(tmp_path / "results.csv").runs
    assert report.verdict == verdict
    assert not report.findings


def test_cells_with_arrays_are_text(tmp_path: Path) -> None:
    """What numpy prints of an array is no number that could not be read."""
    rows = [f"{i},{0.1 * i},{0.2 * i if i % 2 else '[0.5 0.5 ... 0.5]'}" for i in range(9)]
    (tmp_path / "m.csv").write_text("\n".join(["step,loss,k_score", *rows]) + "\n")
    (report,) = postmortem.scan(tmp_path / "m.csv").runs
    assert report.verdict == "healthy"


_CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(-5, 10**6).map(str),
    st.sampled_from(["", "nan", " 1 ", "1_0", "x", '"2"', "1e400", "-0.0", "loss", "1,5"]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(["step", "loss", "lr", "acc", "1", "loss", "epoch"]), min_size=1, max_size=4),
    numbers=st.lists(st.lists(_CELLS, min_size=4, max_size=4), max_size=12),
    plain_rows=st.integers(0, 8),
    end=st.sampled_from(["\n", "", "\r\n"]),
    at_once=st.integers(1, 5),
)
def test_rows_read_together_are_those_read_one_by_one(tmp_path, monkeypatch, names, numbers, plain_rows, end, at_once):
    """Rows of plain numbers are read many at a time, and the result is the same as of each alone."""
    rows = [[str(i), *(f"{i}.5" for _ in names[1:])] for i in range(plain_rows)]
    rows += [cells[: len(names)] for cells in numbers]
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(",".join(row) for row in [names, *rows]) + end)
    monkeypatch.setattr(csv_table, "_AT_ONCE", at_once)
    together = CsvTable.read(path)
    monkeypatch.setattr(csv_table._File, "plain_rows", lambda self, rows: False)
    monkeypatch.setattr(step_column, "_counts_plainly", lambda column: False)
    one_by_one = CsvTable.read(path)
    monkeypatch.undo()
    for part in ("tags", "code", "step", "value", "wall_time", "rank"):
        ours, theirs = getattr(together.points, part), getattr(one_by_one.points, part)
        assert repr(list(ours)) == repr(list(theirs)), part
    for part in ("problems", "notes", "blanks", "unreadable", "skipped", "step_axis", "facts"):
        assert getattr(together, part) == getattr(one_by_one, part), part


def test_commas_between_thousands(tmp_path: Path) -> None:
    """In a quoted cell: "1,201.5" is a number."""
    rows = [f'{i},{2 / (i + 1):.4f},"1,{200 + i}.5"' for i in range(20)]
    (tmp_path / "log.csv").write_text("\n".join(["epoch,loss,time (s)", *rows]) + "\n")
    run = postmortem.load(tmp_path)
    assert run.series("time (s)").tolist() == [1200.5 + i for i in range(20)]
