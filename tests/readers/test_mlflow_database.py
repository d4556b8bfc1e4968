"""Runs in MLflow's SQLite store.

`mlflow_stores/` holds what MLflow 3.17.2 wrote with one program, through MlflowClient and `mlflow.start_run`: the
database and the folder store, each with six runs, of which one was deleted again.
"""

from __future__ import annotations

import lzma
import random
import sqlite3
import tarfile
from pathlib import Path

import pytest

import postmortem
from postmortem.core.errors import NotFoundError, UsageError
from postmortem.readers.mlflow_database import MLflowDatabase
from tests.readers.cases import usual_content, usual_name

STORES = Path(__file__).parent / "mlflow_stores"
RUNS = {
    "healthy-run": ("healthy", "completed"),
    "nan-run": ("failed", "crashed"),
    "inf-run": ("failed", "killed"),
    "deleted-run": ("healthy", "completed"),
    "system": ("healthy", "completed"),
    "child": ("healthy", "completed"),
}


@usual_name(MLflowDatabase)
def name_of_a_file() -> str:
    return "mlflow.db"


@usual_content(MLflowDatabase)
def content_of_a_file() -> bytes:
    return lzma.decompress((STORES / "mlflow.db.xz").read_bytes())


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    path.write_bytes(content_of_a_file())
    return path


def write(path: Path, metrics: str, rows: list[tuple[object, ...]]) -> None:
    """A database with the tables of an early MLflow, and one run."""
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER); CREATE TABLE params (key, value, run_uuid);"
            "CREATE TABLE runs (run_uuid, name, status, start_time, end_time, lifecycle_stage);"
            f"CREATE TABLE metrics ({metrics});"
            "INSERT INTO runs VALUES ('0a1b', '', 'RUNNING', 1700000000000, NULL, 'active')"
        )
        cells = ", ".join("?" * len(metrics.split(",")))
        database.executemany(f"INSERT INTO metrics VALUES ({cells})", rows)


def test_each_run_of_a_database_is_a_run(stored: Path) -> None:
    """Six runs as MLflow wrote them, with their names, ends and verdicts; the run tables of the folder are not read."""
    report = postmortem.scan(stored.parent)
    assert {run.name.partition(" ")[0]: (run.verdict, run.ended) for run in report.runs} == RUNS
    nan, inf = (next(r for r in report.runs if r.name.startswith(name)) for name in ("nan-run", "inf-run"))
    assert [(f.name, f.tag, f.step) for f in nan.findings][:1] == [("nan-onset", "train/loss", 80)]
    assert [(f.name, f.tag, f.step) for f in inf.findings][:1] == [("inf-onset", "grad_norm", 120)]
    assert report.problems == ()
    assert all(run.problems == () for run in report.runs)


def test_one_run_by_its_path(stored: Path) -> None:
    """A run is chosen by the path that reports name, DATABASE/RUN_ID; its numbers are in the order of time."""
    with pytest.raises(UsageError, match="holds 6 runs") as several:
        postmortem.load(stored)
    run = postmortem.load(MLflowDatabase.runs(stored)[2])
    assert str(run.path) in str(several.value)
    assert (run.name, run.config) == ("inf-run", {"batch_size": "32", "optimizer": "adam"})
    assert (run.sources[0].kind, len(run.series("train/loss")), len(run.series("val loss"))) == ("mlflow", 120, 6)
    assert run.series("grad_norm").tolist() == [float("inf"), float("-inf")]
    assert run.frame["wall_time"].iloc[0] == 1700000000.0
    assert run.frame["wall_time"].is_monotonic_increasing
    with pytest.raises(NotFoundError, match="no such run in"):
        postmortem.load(stored / "0a1b")


def test_a_deleted_run_is_named_as_such(stored: Path) -> None:
    """MLflow hides a deleted run and keeps its numbers; they are read, with a note."""
    deleted = next(run for run in map(postmortem.load, MLflowDatabase.runs(stored)) if run.name == "deleted-run")
    assert any("deleted in MLflow" in note for note in deleted.notes)


def test_the_folder_store_of_the_same_runs(tmp_path: Path) -> None:
    """The same program with the folder store: the same six runs, and none beside them."""
    with tarfile.open(STORES / "mlruns.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    report = postmortem.scan(tmp_path)
    assert {run.name.partition(" ")[0]: (run.verdict, run.ended) for run in report.runs} == RUNS
    assert report.problems == ()


def test_an_open_database_is_read_and_left_alone(tmp_path: Path) -> None:
    """What a program has committed to the write-ahead log is read; the files and the folder stay as they are."""
    path = tmp_path / "tracking.sqlite"
    columns = "key, value, timestamp, run_uuid, step, is_nan"
    write(path, columns, [("loss", 3 - i / 9, 1700000000000 + i, "0a1b", i, 0) for i in range(9)])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("INSERT INTO metrics VALUES ('loss', 0.0, 1700000000009, '0a1b', 9, 1)")
    writer.commit()
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    run = postmortem.load(tmp_path)
    assert run.frame["step"].tolist() == [*range(10)]
    assert run.frame["value"].isna().tolist() == [False] * 9 + [True]
    assert run.ended == "running"
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    writer.close()


def test_an_old_database_without_steps(tmp_path: Path) -> None:
    """Before MLflow 1.0 metrics had neither a step nor is_nan: the values of a metric are counted by time."""
    rows = [("loss", 1 / i, 1700000000000 + i, "0a1b") for i in (3, 1, 2)]
    write(tmp_path / "mlflow.db", "key, value, timestamp, run_uuid", rows)
    frame = postmortem.load(tmp_path).frame
    assert list(zip(frame["step"], frame["value"], strict=True)) == [(0, 1.0), (1, 0.5), (2, 1 / 3)]


def test_cells_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    """SQLite stores any text in a column of numbers: such a value is a problem, the others are read."""
    rows = [("loss", "n/a" if i == 5 else 1.0, 1700000000000 + i, "0a1b", i, 0) for i in range(9)]
    write(tmp_path / "mlflow.db", "key, value, timestamp, run_uuid, step, is_nan", rows)
    run = postmortem.load(tmp_path)
    assert (run.n_points, [p.what for p in run.problems]) == (
        8,
        ["1 rows of metrics whose step or value is no number"],
    )


def test_other_databases_are_left_alone(tmp_path: Path) -> None:
    """A database without the tables of MLflow, or with views of their names, is no run and no problem."""
    with sqlite3.connect(tmp_path / "people.db") as database:
        database.execute("CREATE TABLE runs (run_uuid)")
        for name in ("experiments", "metrics", "params"):
            database.execute(f"CREATE VIEW {name} AS SELECT 1")
    (tmp_path / "train.log").write_text("step 1 loss 2\nstep 2 loss 1.5\n")
    report = postmortem.scan(tmp_path)
    assert ([source.kind for source in report.runs[0].sources], report.problems) == (["text"], ())


def test_damage_raises_nothing(stored: Path) -> None:
    """Pages of noise and cuts at any place: each run is read as far as it goes, or a problem says why not."""
    whole, noise = stored.read_bytes(), random.Random(7)
    points = sum(postmortem.load(path).n_points for path in MLflowDatabase.runs(stored))
    told = 0
    for _ in range(25):
        data = bytearray(whole)
        if noise.random() < 0.5:
            del data[noise.randrange(1, len(data)) :]
        else:
            at = noise.randrange(0, len(data) - 40_960, 4096)
            data[at : at + 40_960] = noise.randbytes(40_960)
        stored.write_bytes(data)
        report = postmortem.scan(stored.parent)
        found = sum(source.points for run in report.runs for source in run.sources)
        problems = [*report.problems, *(p for run in report.runs for p in run.problems)]
        assert found == points or problems
        told += bool(problems)
    assert told > 5
