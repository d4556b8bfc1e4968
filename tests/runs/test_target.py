"""Which run a path that is given to a replay means."""

from __future__ import annotations

from pathlib import Path

import pytest

from postmortem import NotFoundError, PostmortemError, UsageError
from postmortem.runs.target import resolve


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """runs/a and runs/b, each with a log of numbers, its output and a checkpoint."""
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{1 / (i + 1)}\n" for i in range(9)))
        (folder / "train.log").write_text("".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(9)))
        (folder / "checkpoints" / "step_5.pt").write_bytes(b"PK")
    return tmp_path / "runs"


def test_a_run_folder(runs: Path) -> None:
    """A folder with one run is that run, with all of its files."""
    target = resolve(runs / "a")
    assert target.files is not None
    assert [p.path.name for p in target.files.parts] == ["metrics.csv", "train.log"]
    assert (target.folder, target.checkpoint) == (runs / "a", None)


@pytest.mark.parametrize("name", ["train.log", "metrics.csv"])
def test_a_log(runs: Path, name: str) -> None:
    """A log means the run that it belongs to; its folder is where a recipe and checkpoints are looked for."""
    target = resolve(runs / "a" / name)
    assert target.files is not None
    assert len(target.files.parts) == 2
    assert target.folder == runs / "a"


def test_a_checkpoint(runs: Path) -> None:
    """The log of a checkpoint is looked for in its folder and the one above; the replay starts from the checkpoint."""
    path = runs / "a" / "checkpoints" / "step_5.pt"
    target = resolve(path)
    assert target.files is not None
    assert target.files.path == runs / "a"
    assert (target.folder, target.checkpoint) == (path, path)


def test_a_checkpoint_without_a_log_of_its_own(runs: Path, tmp_path: Path) -> None:
    """With several runs in the folder, or none, no run is taken as the one that saved the checkpoint."""
    for path in (runs / "step_5.pt", tmp_path / "elsewhere" / "deep" / "step_5.pt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PK")
        target = resolve(path)
        assert (target.files, target.checkpoint) == (None, path)


def test_several_runs_are_listed(runs: Path) -> None:
    """A folder of several runs is no target: the message lists them."""
    with pytest.raises(UsageError, match=r"contains 2 runs, replay one of them: .*/a, .*/b"):
        resolve(runs)


def test_nothing_there(runs: Path) -> None:
    """A path that does not exist is an error, a folder without logs a target without a run."""
    with pytest.raises(NotFoundError, match="no such run or checkpoint"):
        resolve(runs / "c")
    (runs / "c").mkdir()
    assert resolve(runs / "c").files is None


def test_a_replay_reads_one_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder with a hundred runs' logs, the replay of one log reads that run only."""
    from postmortem import api
    from postmortem.runs import each

    pytest.importorskip("torch")
    read = []
    inner = each.read_runs
    monkeypatch.setattr(each, "read_runs", lambda files, **o: read.append(files.name) or inner(files, **o))
    for i in range(20):
        (runs / f"{i}.log").write_text("".join(f"step={k} loss={1 / (k + 1):.4f}\n" for k in range(9)))
    with pytest.raises(PostmortemError, match=r"no recipe\.py"):
        api.replay(runs / "7.log")
    assert read == ["7"]
