"""Writers that wrote into one folder: at the same time they are runs, one after the other they are one run."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import postmortem
from postmortem.cli.main import cli
from tests.runs.test_names import named_wandb

NOW = float(int(time.time()) - 100_000)
"""The names of the files hold the time of their creation."""


def _write(
    folder: Path,
    suffix: str,
    begin: float,
    steps: range,
    *,
    nan_from: int = 10**9,
    rate: float = 0.01,
    start: float = 2.5,
    seconds: float = 1.0,
    process: str = "node1.4242.0",
    tag: str = "train/loss",
) -> Path:
    """An event file; one second for each step."""
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    made = folder / f"made-{process}{suffix}"
    writer = EventFileWriter(str(made))
    for n, step in enumerate(steps):
        loss = float("nan") if step >= nan_from else start - 0.005 * step
        values = [Summary.Value(tag=tag, simple_value=loss), Summary.Value(tag="lr", simple_value=rate)]
        writer.add_event(Event(wall_time=begin + n * seconds, step=step, summary=Summary(value=values)))
    writer.close()
    (file,) = made.iterdir()
    path = folder / f"events.out.tfevents.{int(begin)}.{process}{suffix}"
    path.write_bytes(file.read_bytes())
    file.unlink()
    made.rmdir()
    return path


def _text(begin: float, steps: range, start: float = 2.5, seconds: float = 1.0) -> str:
    """What a program prints with its logger, one line for each step."""
    lines = []
    for n, step in enumerate(steps):
        at = datetime.fromtimestamp(begin + n * seconds, UTC)
        lines.append(f"{at:%Y-%m-%d %H:%M:%S},000 INFO step {step}: loss {start - 0.005 * step:.4f}\n")
    return "".join(lines)


@pytest.mark.parametrize("process", ["node1.4242.1", "node1.5151.0", "node2.4242.0"])
def test_two_writers_at_once_are_two_runs(tmp_path: Path, process: str) -> None:
    """Each is judged alone: one became NaN. Both say where they were written, under names of their own."""
    one = _write(tmp_path, "", NOW, range(200))
    other = _write(tmp_path, "", NOW + 2, range(200), nan_from=90, process=process)
    failed, healthy = postmortem.scan(tmp_path).runs
    assert [(f.name, f.step, f.tag) for f in failed.findings] == [("nan-onset", 90, "train/loss")]
    assert (failed.verdict, healthy.verdict) == ("failed", "healthy")
    assert (failed.path, healthy.path) == (str(other), str(one))
    assert len({failed.name, healthy.name}) == 2
    assert failed.name.startswith(f"{tmp_path.name}/{process.rpartition('.')[0]}")
    for run, neighbour in ((failed, one), (healthy, other)):
        assert any("at the same time" in note and neighbour.name in note for note in run.notes)


def test_one_of_two_writers_is_chosen_by_its_file(tmp_path: Path) -> None:
    """To load or replay the folder is refused with the names of the files; each file is a run."""
    one = _write(tmp_path, "", NOW, range(200))
    other = _write(tmp_path, ".b", NOW + 2, range(200), nan_from=90)
    with pytest.raises(postmortem.UsageError, match=f"holds 2 runs, load one of them: .*{one.name}.*{other.name}"):
        postmortem.load(tmp_path)
    answer = CliRunner().invoke(cli, ["compare", str(one), str(other), "--format", "json"])
    assert json.loads(answer.output)["first"]["exact_step"] == 90
    pytest.importorskip("torch")
    with pytest.raises(postmortem.UsageError, match="contains 2 runs, replay one of them"):
        postmortem.replay(tmp_path)
    with pytest.raises(postmortem.PostmortemError, match="recipe"):
        postmortem.replay(other)


def test_what_a_restart_overwrote_is_told(tmp_path: Path) -> None:
    """The first attempt became NaN; the second, at a lower rate, is well: the lower rate is no fault."""
    _write(tmp_path, "", NOW, range(200), nan_from=150)
    _write(tmp_path, "", NOW + 1000, range(120, 500), rate=0.004, process="node1.5151.0")
    (report,) = postmortem.scan(tmp_path).runs
    found = [(f.name, f.step, f.severity) for f in report.findings]
    assert found == [("step-reset", 120, "warning"), ("nan-onset", 150, "info")]
    assert "train/loss was non-finite (NaN or Inf) from step 150 on" in report.findings[0].message


def test_a_restart_of_one_of_two_writers_is_its_own(tmp_path: Path) -> None:
    """A file that goes on where one of them stopped belongs to that one, whether the other still writes or not."""
    for name, begin, last in (("still", 250, 400), ("both-ended", 1000, 300)):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, "", NOW, range(200))
        _write(folder, "", NOW + 2, range(last), start=4.0, process="node1.5151.0")
        _write(folder, "", NOW + begin, range(200, 350), process="node1.6161.0")
        steps = {run.name: (run.first_step, run.last_step) for run in postmortem.scan(folder).runs}
        assert sorted(steps.values()) == sorted([(0, 349), (0, last - 1)])


def test_files_beside_two_writers_go_to_the_one_they_repeat(tmp_path: Path) -> None:
    """A text with the same numbers as one of them is its output; what fits none is apart, and says so."""
    _write(tmp_path, "", NOW, range(200))
    _write(tmp_path, "", NOW + 2, range(200), start=4.0, process="node1.5151.0")
    (tmp_path / "big.log").write_text("".join(f"step {i}: loss {4 - 0.005 * i:.4f}\n" for i in range(0, 200, 10)))
    (tmp_path / "job.err").write_text("Traceback (most recent call last):\n  File 'a.py', line 3, in f\nValueError\n")
    runs = {run.name.rpartition("/")[2]: run for run in postmortem.scan(tmp_path).runs}
    assert {name: sorted(s.kind for s in run.sources) for name, run in runs.items()} == {
        "node1.4242": ["tensorboard"],
        "node1.5151": ["tensorboard", "text"],
        "job": ["text"],
    }
    assert runs["node1.4242"].verdict == "healthy"
    assert any("nothing shows whose this file is" in note for note in runs["job"].notes)


def test_ranks_of_a_job_are_one_run(tmp_path: Path) -> None:
    """Processes that come to every step together, with one learning rate, are ranks: their numbers are kept apart."""
    for rank in range(3):
        _write(tmp_path, "", NOW + 0.02 * rank, range(200), start=2.5 + 0.01 * rank, process=f"node1.{4242 + rank}.0")
    (run,) = postmortem.scan(tmp_path).runs
    assert len([note for note in run.notes if "kept apart" in note]) == 2


def test_jobs_in_step_by_chance_are_told_by_what_ranks_share(tmp_path: Path) -> None:
    """A NaN that reaches only one of them, and learning rates that differ, show two jobs."""
    for name, other in (("nan", {"nan_from": 90}), ("rate", {"rate": 0.002})):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, "", NOW, range(200))
        _write(folder, "", NOW, range(200), start=2.6, process="node1.5151.0", **other)  # type: ignore[arg-type]
        assert len(postmortem.scan(folder).runs) == 2


def test_two_files_of_one_process_are_one_run(tmp_path: Path) -> None:
    """With tags of their own, with the same numbers, or one that only evaluates."""
    for name, other in (
        ("tags", {"tag": "val/loss", "rate": 0.01}),
        ("same", {}),
        ("evaluation", {"start": 2.6}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, "", NOW, range(200))
        stride = 10 if name == "evaluation" else 1
        _write(folder, ".1", NOW, range(0, 200, stride), seconds=stride, **other)  # type: ignore[arg-type]
        (run,) = postmortem.scan(folder).runs
        assert run.verdict == "healthy"
    tags = postmortem.load(tmp_path / "same").roles
    assert list(tags) == ["train/loss", "lr"]


def test_numbered_outputs_at_the_same_time_are_two_runs(tmp_path: Path) -> None:
    """Beside one set of checkpoints they are starts of one job only where the second begins after the first."""
    for name, begin, runs in (("after", 1000, 1), ("at-once", 20, 2)):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "step_80.pt").write_bytes(b"PK\x03\x04")
        (folder / "train-1.out").write_text(_text(NOW, range(200)))
        (folder / "train-2.out").write_text(_text(NOW + begin, range(80, 280), start=2.4))
        (folder / "train-2.err").write_text("Killed\n")
        found = postmortem.scan(folder).runs
        assert len(found) == runs
    assert {(run.name, run.ended) for run in found} == {("at-once/train-1", "unknown"), ("at-once/train-2", "killed")}


def test_wandb_files_of_two_runs_in_one_folder_are_two_runs(tmp_path: Path) -> None:
    """Copied out of their folders, each has its own id."""
    for id_ in ("abc1", "abc2"):
        folder = named_wandb(tmp_path / id_, id_, f"name-{id_}")
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / "all" / f"run-{id_}.wandb").write_bytes((folder / f"run-{id_}.wandb").read_bytes())
    assert {run.name for run in postmortem.scan(tmp_path / "all")} == {"name-abc1", "name-abc2"}
