"""`postmortem export`: the table that other programs read is that of the run, to the last bit."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest

from postmortem import api

ODD = [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e-5]


@pytest.fixture
def run(tmp_path):
    """The log of a run with values that tables tend to lose, in tags that need quotes."""
    rows = [f'{{"step": {i}, "loss, \\"x\\"": {repr(v).replace("nan", "NaN").replace("inf", "Infinity")}, "ü": {i}}}'
            for i, v in enumerate(ODD)]  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def bits(values) -> list[str]:
    """The numbers, so that -0.0 and 0.0 differ and a NaN equals itself."""
    return [float(v).hex() for v in values]


def test_csv_keeps_every_bit(postmortem, run, tmp_path):
    """The rows of `Run.frame` in their order, with the text of its columns and all digits."""
    called = postmortem("export", run, "-o", tmp_path / "out.csv")
    frame = api.load(run).frame
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (called.code, called.out, called.err) == (0, "", f"wrote {tmp_path / 'out.csv'} ({len(frame)} rows)\n")
    assert list(rows[0]) == list(frame.columns)
    assert bits(row["value"] for row in rows) == bits(frame["value"])
    assert bits(row["wall_time"] for row in rows) == bits(frame["wall_time"])
    for name in ("run", "source", "rank", "segment", "tag", "step"):
        assert [row[name] for row in rows] == [str(v) for v in frame[name]]


def test_parquet_keeps_every_bit(postmortem, run, sample_runs, tmp_path):
    """NaN stays a NaN and is no null, which only an unknown time is; types are those of `Run.frame`."""
    parquet = pytest.importorskip("pyarrow.parquet")
    for source in (run, sample_runs / "nan-log-of-zero", sample_runs / "restart"):
        assert postmortem("export", source, "-o", tmp_path / "out.parquet").code == 0
        frame, table = api.load(source).frame, parquet.read_table(tmp_path / "out.parquet")
        assert table.column_names == list(frame.columns)
        assert table["value"].null_count == 0
        assert table["wall_time"].null_count == np.isnan(frame["wall_time"]).sum()
        assert bits(table["value"].to_pylist()) == bits(frame["value"])
        for name in ("run", "source", "rank", "segment", "tag", "step"):
            assert table[name].to_pylist() == frame[name].tolist()
        assert [str(table[name].type) for name in ("rank", "segment", "step")] == ["int16", "int16", "int64"]


def test_an_export_beside_the_log_is_no_run(postmortem, run):
    """The next scan of the folder reads the run once, and the table may be written again."""
    before = postmortem("scan", run, "--format", "jsonl").out
    for _ in range(2):
        assert postmortem("export", run, "-o", run / "run.csv").code == 0
    assert postmortem("scan", run, "--format", "jsonl").out == before


def test_a_log_is_not_replaced(postmortem, tmp_path):
    """A CSV file that the command reads is refused as the output, be it the run itself or in its folder."""
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n1,2\n2,1\n")
    for run in (log, tmp_path):
        called = postmortem("export", run, "-o", log)
        assert (called.code, called.err) == (
            2,
            f"postmortem: {log} is a log that this command reads: write to another file\n",
        )
    assert log.read_text() == "step,loss\n1,2\n2,1\n"


def test_the_old_table_stays_if_the_new_one_fails(postmortem, run, tmp_path, monkeypatch):
    """What cannot be written whole is not there at all."""
    old = tmp_path / "out.csv"
    old.write_text("old")

    def full(self, out, **_):
        out.write(b"run,")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", full)
    called = postmortem("export", run, "-o", old)
    assert (called.code, called.err) == (2, f"postmortem: {old}: cannot be written: No space left on device\n")
    assert old.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "run"]


def test_what_cannot_be_done(postmortem, run, tmp_path, monkeypatch):
    """An unknown ending, no folder, no log, several runs, no pyarrow: one line each, exit code 2, and no file."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "empty").mkdir()
    shutil.copytree(run, tmp_path / "two" / "a")
    shutil.copytree(run, tmp_path / "two" / "b")
    (tmp_path / "two" / "b" / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    for source, output, why in (
        (run, "out.xlsx", "must end in .csv or .parquet"),
        (run, "out.parquet", "requires the extra [parquet]"),
        (run, "gone/out.csv", "cannot be written: No such file or directory"),
        (tmp_path / "empty", "out.csv", "no training log found"),
        (tmp_path / "gone", "out.csv", "no such file or folder"),
        (tmp_path / "two", "out.csv", "holds 2 runs, load one of them"),
    ):
        called = postmortem("export", source, "-o", tmp_path / output)
        assert (called.code, called.out, called.err.count("\n")) == (2, "", 1)
        assert why in called.err
        assert not (tmp_path / output).exists()


def test_lost_data_is_said(postmortem, tmp_path):
    """Exit code 3 and a line where something of the log could not be read."""
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n1,2\n2,1,7,8\n3,1\n")
    called = postmortem("export", log, "-o", tmp_path / "out.csv")
    assert called.code == 3
    assert f"data was lost while reading (1 problem, see `postmortem show {log}`)" in called.err
