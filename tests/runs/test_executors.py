"""Runs that the workers of a Dask cluster read and judge."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import postmortem
from postmortem.core.errors import PostmortemError, UsageError
from postmortem.runs.executors import executor_at, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # of the cluster's own packages


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a scheduler on loopback with two worker processes."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
        ) as found,
    ):
        yield found.scheduler_address.replace("tcp://", "dask://")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for i in range(6):
        (tmp_path / f"r{i}").mkdir()
        bad = 50 if i == 2 else 1000
        rows = (f"step {s} loss {2 - s / 200 if s < bad else float('nan')} lr 0.001\n" for s in range(100))
        (tmp_path / f"r{i}" / "train.log").write_text("".join(rows))
    return tmp_path


def without_runs(report: Any) -> list[tuple[Any, ...]]:
    return [(r.name, r.path, r.verdict, [(f.code, f.step, f.message) for f in r.findings]) for r in report.runs]


def test_a_cluster_reports_what_this_process_reports(cluster: str, runs: Path) -> None:
    """The same reports in the same order, and progress for each run."""
    seen: list[tuple[int, int, str]] = []
    there = postmortem.scan(runs, executor=cluster, progress=lambda *state: seen.append(state))
    assert without_runs(there) == without_runs(postmortem.scan(runs))
    assert [done for done, _, _ in seen] == [*range(1, 7), 6]
    assert there.runs[0].name == "r2"
    assert len(there.runs[0].run.frame) == 200


def test_two_workers_share_the_runs(cluster: str) -> None:
    """Both processes of the cluster, and not this one, do the work."""
    with executor_at(cluster) as executor:
        processes = {pid for _, pid in results_of(executor, Slow(), range(6))}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_relative_paths(cluster: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers have a working directory of their own."""
    monkeypatch.chdir(runs)
    assert [r.verdict for r in postmortem.scan("r2", executor=cluster).runs] == ["failed"]


def test_the_command(cluster: str, runs: Path, postmortem: Any) -> None:
    """`scan --executor`: text and exit code are those of a scan without it."""
    there = postmortem("scan", runs, "--executor", cluster)
    here = postmortem("scan", runs)
    assert (there.code, there.out) == (here.code, here.out)
    assert here.code == 1


@dataclass
class Slow:
    """Work that tells its process."""

    def inside(self, note: Any) -> Any:
        return nullcontext()

    def __call__(self, item: int) -> int:
        import time

        time.sleep(0.2)
        return os.getpid()

    def lost(self, item: int, why: str) -> int:
        raise AssertionError(why)


@dataclass
class Odd(Slow):
    """Work on which the process dies, or that raises."""

    dies: int = -1
    raises: int = -1

    def __call__(self, item: int) -> Any:
        if item == self.dies:
            os._exit(3)
        if item == self.raises:
            raise PostmortemError("said by the work")
        return item

    def lost(self, item: int, why: str) -> Any:
        return item, why


def test_a_worker_that_dies_costs_one_item(cluster: str) -> None:
    """The others have their results; the lost one says why."""
    with executor_at(cluster) as executor:
        found = dict(results_of(executor, Odd(dies=0), [0]))
        assert "KilledWorker" in found[0][1]
        assert dict(results_of(executor, Odd(), range(4))) == {i: i for i in range(4)}


def test_what_the_work_raises_is_raised() -> None:
    """Of any executor of concurrent.futures."""
    with ThreadPoolExecutor(2) as executor, pytest.raises(PostmortemError, match="said by the work"):
        list(results_of(executor, Odd(raises=1), range(3)))


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "dask://127.0.0.1", "dask://:8786", "ray://h:1", "dask://h:x"])
def test_addresses_of_another_form(address: str, runs: Path) -> None:
    with pytest.raises(UsageError, match="dask://HOST:PORT"):
        postmortem.scan(runs, executor=address)


def test_no_scheduler(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port on which nobody answers is one line."""
    monkeypatch.setattr("postmortem.runs.executors._CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PostmortemError, match=f"dask://127.0.0.1:{port}: no Dask scheduler answers"):
        postmortem.scan(runs, executor=f"dask://127.0.0.1:{port}")


def test_replays_stay_here(runs: Path) -> None:
    with pytest.raises(UsageError, match="on this machine"):
        postmortem.scan(runs, executor=ThreadPoolExecutor(1), replay_failed=True)
