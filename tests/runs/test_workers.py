"""Several processes that share the runs of a scan."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from postmortem import api
from postmortem.core.errors import MissingExtra, PostmortemError
from postmortem.runs import workers
from postmortem.runs.claimed import Part, RunFiles
from postmortem.scanning import Examiner

HEALTHY = "".join(f"step {i} loss {3 / (1 + 0.1 * i):.4f} lr 0.001\n" for i in range(60))

forked = pytest.mark.skipif(
    sys.platform != "linux", reason="a process that is not forked has none of the test's classes"
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six healthy runs, and one whose loss becomes NaN."""
    for i in range(6):
        (tmp_path / "runs" / f"r{i}").mkdir(parents=True)
        (tmp_path / "runs" / f"r{i}" / "train.log").write_text(HEALTHY)
    (tmp_path / "runs" / "r3" / "train.log").write_text(HEALTHY + "step 60 loss nan lr 0.001\n" * 3)
    return tmp_path / "runs"


def test_the_report_is_the_same(postmortem, sample_runs, tmp_path) -> None:
    """The number of processes changes nothing in a report, in any order of the runs; the cache is used and filled."""
    alone = postmortem("scan", sample_runs, "--format", "json", "--jobs", 1, "--no-cache").out
    assert json.loads(alone)["runs"]
    for options in (["--no-cache"], [], []):
        shared = postmortem("scan", sample_runs, "--format", "json", "-j", 3, *options)
        assert shared.out == alone
        assert shared.err == ""


@forked
def test_a_run_that_ends_its_process(monkeypatch, runs) -> None:
    """Memory that runs out costs one run, whose report says so; all others are reported."""
    read = Examiner.__call__

    def killed(self: Examiner, files: RunFiles):
        if files.name == "r2":
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, files)

    monkeypatch.setattr(Examiner, "__call__", killed)
    report = api.scan(runs, jobs=2)
    assert sorted(run.verdict for run in report.runs) == ["failed", *["healthy"] * 4, "suspect"]
    assert report["r2"].verdict == "suspect"
    (problem,) = report["r2"].problems
    assert problem.what == "the process that read it was ended by signal 9, as when memory runs out"
    assert problem.lost == "the run"
    assert api.exit_code(report, "never") == 3


@forked
def test_what_a_run_raises_is_raised(monkeypatch, runs) -> None:
    """An error of the package keeps its class and message; one that cannot be pickled keeps its message."""

    def missing(self: Examiner, files: RunFiles):
        raise MissingExtra("this", "replay")

    monkeypatch.setattr(Examiner, "__call__", missing)
    with pytest.raises(MissingExtra, match=r"this requires the extra \[replay\]"):
        api.scan(runs, jobs=2)

    class Local(Exception):
        pass

    def local(self: Examiner, files: RunFiles):
        raise Local("not to be pickled")

    monkeypatch.setattr(Examiner, "__call__", local)
    with pytest.raises(PostmortemError, match="Local: not to be pickled"):
        api.scan(runs, jobs=2)


def test_other_ways_to_start_a_process(monkeypatch, runs) -> None:
    """Where processes are not forked, they get all they need: the report is the same."""
    alone = api.scan(runs, jobs=1, keep=False)
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    assert str(api.scan(runs, jobs=2, keep=False)) == str(alone)


def test_runs_are_kept(runs) -> None:
    """`keep` works with several processes as well."""
    report = api.scan(runs, jobs=2)
    assert sorted(run.run.n_points for run in report.runs if run.run is not None) == [*[120] * 5, 126 - 4]


def test_how_many(monkeypatch, tmp_path) -> None:
    """A small scan takes one process, a large one as many as there are cores, which a container may limit."""
    monkeypatch.setattr(workers, "cores", lambda: 8)
    few = [RunFiles(str(i), tmp_path) for i in range(20)]
    assert workers.worthwhile(few) == 1
    assert workers.worthwhile(few * 50) == 8
    assert workers.worthwhile([]) == 1
    large = tmp_path / "large.log"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    files = [RunFiles(str(i), tmp_path, [Part(large, object)]) for i in range(2)]
    assert workers.worthwhile(files) == 2  # one process a run


def test_cores(monkeypatch, tmp_path) -> None:
    """The processors of this process, and the quota of its container where that is lower."""
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    for quota, cores in (
        ("max 100000", 16),
        ("250000 100000", 3),
        ("3200000 100000", 16),
        ("1000 100000", 1),
        ("", 16),
    ):
        (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(workers, "_QUOTA", tmp_path / "cpu.max")
        assert workers.cores() == cores
    monkeypatch.setattr(workers, "_QUOTA", tmp_path / "none")
    assert workers.cores() == 16


def test_a_wrong_number(postmortem, runs) -> None:
    """--jobs takes whole numbers from 1."""
    for wrong in ("0", "-2", "many"):
        result = postmortem("scan", runs, "--jobs", wrong)
        assert result.code == 2
        assert "--jobs" in result.err
