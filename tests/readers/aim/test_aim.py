"""Runs in a repository of Aim.

`repository.tar.xz` is what Aim 3.29.1 wrote: a healthy run, one whose loss becomes NaN, one with objects beside its
numbers, and one whose process ended without closing it. The logs of RocksDB about itself were left out.
"""

from __future__ import annotations

import math
import os
import sqlite3
import tarfile
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.core.skipped import Skip
from postmortem.readers.aim import Aim
from postmortem.readers.aim.bits import RANGE_DELETED, SET, DamagedError
from postmortem.readers.aim.database import _newest, items
from postmortem.readers.aim.run_tree import path_of
from postmortem.readers.aim.snappy import unpacked
from tests.readers.cases import usual_content, usual_name

STORED = Path(__file__).with_name("repository.tar.xz")
RUNS = {
    "healthy": "82444c96602e4d5caed078e6",
    "nan": "eac71cc6c0e64432b94c76f4",
    "objects": "b7890d5eb6714b259fb73cb0",
    "killed": "2e0449e94f5a4768ad7ffe4e",
}


@usual_name(Aim)
def name_of_a_file() -> str:
    return "meta/chunks/0a1b/CURRENT"


@usual_content(Aim)
def content_of_a_file() -> bytes:
    return b"MANIFEST-000004\n"


def repository(folder: Path) -> Path:
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder / ".aim"


def current(root: Path, name: str) -> Path:
    return root / "meta" / "chunks" / RUNS[name] / "CURRENT"


def tracked(name: str, steps: int = 40, bad: int = 1000) -> list[float]:
    """The losses that the run of this name tracked."""
    random = Random(name)
    losses = [2.0 / (1 + i * 0.05) + random.random() * 0.05 for i in range(steps)]
    return [math.nan if i >= bad else loss for i, loss in enumerate(losses)]


@pytest.mark.parametrize(("name", "steps", "bad"), [("healthy", 40, 1000), ("nan", 40, 31), ("killed", 40, 1000)])
def test_every_value_is_read(name: str, steps: int, bad: int, tmp_path: Path) -> None:
    """All values of a run with their steps, also those that are only in the log of changes of one that was killed."""
    reading = Aim.read(current(repository(tmp_path), name))
    points = reading.points
    rows = sorted(zip((points.tags[c] for c in points.code), points.step.tolist(), points.value.tolist(), strict=True))
    losses = tracked(name, steps, bad)
    expected = [("train/loss", i, loss) for i, loss in enumerate(losses)]
    expected += [("val/loss", i, loss * 1.1) for i, loss in enumerate(losses) if i % 10 == 9]
    expected += [("lr", i, 0.001) for i in range(steps)] + [("epoch", i, i // 20) for i in range(steps)]
    assert repr(rows) == repr([(tag, step, float(value)) for tag, step, value in sorted(expected)])
    assert reading.problems == []
    assert sorted(points.wall_time) == points.wall_time.tolist()
    hparams = {"lr": 0.001, "batch_size": 32, "model": {"depth": 4, "act": "gelu"}, "betas": [0.9, 0.999]}
    assert reading.config == {"hparams": hparams}


def test_each_run_of_a_repository_is_a_run(tmp_path: Path) -> None:
    """Four runs in the hidden folder, by their names; no other file of the repository is one, nor changes."""
    root = repository(tmp_path)
    for folder in root.glob("*/chunks/*"):
        (folder / "LOG").write_text("2026/11/27-04:44:41.44 139664151325568 RocksDB version: 6.29.5\nstep 1 loss nan\n")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    report = postmortem.scan(tmp_path)
    assert {run.name.partition(" ")[0]: run.verdict for run in report.runs} == {
        "healthy": "healthy",
        "nan": "failed",
        "objects": "healthy",
        "killed": "healthy",
    }
    (nan,) = (run for run in report.runs if run.name.startswith("nan"))
    assert [(f.name, f.tag, f.step) for f in nan.findings][:1] == [("nan-onset", "train/loss", 31)]
    assert report.problems == ()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


def test_objects_are_counted(tmp_path: Path) -> None:
    """Texts, distributions and lists of them are left out, by kind; empty settings stay."""
    reading = Aim.read(current(repository(tmp_path), "objects"))
    assert reading.skipped == {Skip.TEXT: 5, Skip.HISTOGRAMS: 5, Skip.MEDIA: 5}
    assert reading.config == {"hparams": {"lr": 0.1, "notes": {}, "layers": []}}
    assert reading.problems == []


def test_the_names_of_a_run(tmp_path: Path) -> None:
    """The name, the experiment and the times; without the database of names the numbers are read all the same."""
    root = repository(tmp_path)
    reading = Aim.read(current(root, "healthy"))
    assert (reading.facts["display_name"], reading.facts["project"]) == ("healthy", "exp")
    assert 1.7e9 < (reading.started or 0) < (reading.stopped or 0)
    names = root / "run_metadata.sqlite"
    names.write_bytes(b"no database" * 100)
    (problem,) = Aim.read(current(root, "healthy")).problems
    assert (problem.path, problem.what) == (str(names), "damaged database: file is not a database")
    names.unlink()
    reading = Aim.read(current(root, "healthy"))
    assert (len(reading.points), reading.problems, reading.started) == (124, [], None)


def test_an_archived_run_is_named_so(tmp_path: Path) -> None:
    """A run that was archived in Aim is read, with a note."""
    root = repository(tmp_path)
    with sqlite3.connect(root / "run_metadata.sqlite") as database:
        database.execute("UPDATE run SET is_archived = 1")
    database.close()
    assert "the run is archived in Aim" in Aim.read(current(root, "nan")).notes


@pytest.mark.parametrize("gone", ["*.sst", "MANIFEST-*"])
def test_missing_files_are_named(gone: str, tmp_path: Path) -> None:
    """A table that the list of files names, or the list itself, is missing: a Problem, and nothing wrong is read."""
    root = repository(tmp_path)
    (file,) = (root / "seqs" / "chunks" / RUNS["healthy"]).glob(gone)
    file.unlink()
    reading = Aim.read(current(root, "healthy"))
    assert str(file) in {problem.path for problem in reading.problems}
    assert len(reading.points) == (0 if gone == "*.sst" else 124)


def test_metrics_that_are_gone_are_missed(tmp_path: Path) -> None:
    """The run says which steps it tracked: without the database of the values, each metric is missed."""
    root = repository(tmp_path)
    folder = root / "seqs" / "chunks" / RUNS["nan"]
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    whats = [problem.what for problem in Aim.read(current(root, "nan")).problems]
    assert "the values of lr are missing; the last that was tracked is of step 39" in whats
    assert len(whats) == 3


@pytest.mark.parametrize("file", ["000005.log", "MANIFEST-000004"])
@pytest.mark.parametrize("kind", ["cut", "flip", "blank"])
def test_damage_of_the_logs_is_said(file: str, kind: str, tmp_path: Path) -> None:
    """No value is wrong or lost without a Problem, wherever the log of changes or the list of files is damaged."""
    root = repository(tmp_path)
    path = root / "seqs" / "chunks" / RUNS["killed"] / file
    data = path.read_bytes()
    whole = Aim.read(current(root, "killed")).points
    known = set(zip(whole.code.tolist(), whole.step.tolist(), whole.value.tolist(), strict=True))
    random = Random(f"{file} {kind}")
    for _ in range(int(os.environ.get("DAMAGE_CASES", "150")) // 5):
        at = random.randrange(len(data))
        bad = {
            "cut": data[:at],
            "flip": data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :],
            "blank": data[:at] + bytes(len(data[at : at + 30])) + data[at + 30 :],
        }[kind]
        path.write_bytes(bad)
        reading = Aim.read(current(root, "killed"))
        points = reading.points
        codes = [whole.tags.index(points.tags[code]) for code in points.code]
        found = set(zip(codes, points.step.tolist(), points.value.tolist(), strict=True))
        assert found <= known
        assert found == known or reading.problems or bad == data, (at, len(known - found))


def test_a_running_writer_that_replaces_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is replaced while it is read is looked for again under its new number."""
    root = repository(tmp_path)
    folder = root / "seqs" / "chunks" / RUNS["healthy"]
    whole = items(folder, [])
    read, calls = Path.read_bytes, []

    def replaced(path: Path) -> bytes:
        if path.suffix == ".sst" and not calls:
            calls.append(path)
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", replaced)
    problems: list[postmortem.Problem] = []
    assert items(folder, problems) == whole
    assert (problems, len(calls)) == ([], 1)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.binary(max_size=2), st.booleans()), max_size=30))
def test_deleted_ranges(changes: list[tuple[bytes, bytes, bool]]) -> None:
    """The newest value of each key is found as by applying the changes one by one."""
    slow: dict[bytes, bytes] = {}
    entries = []
    for sequence, (key, other, is_set) in enumerate(changes):
        entries.append((key, sequence, SET if is_set else RANGE_DELETED, other))
        if is_set:
            slow[key] = other
        else:
            slow = {k: v for k, v in slow.items() if not key <= k < other}
    Random(0).shuffle(entries)
    assert _newest(entries) == slow


@given(st.binary(max_size=20), st.binary(max_size=300), st.integers(0, 200))
def test_snappy(start: bytes, end: bytes, times: int) -> None:
    """What Snappy packed is unpacked; a part of it is never taken for the whole."""
    data = start * times + end + start * 3
    packed = pa.compress(data, codec="snappy", asbytes=True)
    assert unpacked(packed) == data
    for cut in range(len(packed) if len(packed) < 60 else 0):
        with pytest.raises(DamagedError):
            unpacked(packed[:cut])


@given(st.binary(max_size=40))
def test_any_key(key: bytes) -> None:
    """Keys of any bytes are a path or none."""
    path = path_of(key)
    assert path is None or all(isinstance(part, (str, int)) for part in path)
