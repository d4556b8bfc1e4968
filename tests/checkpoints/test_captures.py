"""A capture of `postmortem run` in a later scan: no checkpoint, but what the step at fault is repeated from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postmortem import api
from postmortem.checkpoints.captures import HEAD, HOME, captures_of, note_step
from postmortem.checkpoints.find import find_checkpoints, is_checkpoint
from postmortem.core.errors import UsageError


def run(folder: Path, losses: list[float]) -> Path:
    """A run with these losses from step 1 on."""
    folder.mkdir(parents=True)
    rows = [f"{step},{loss}" for step, loss in enumerate(losses, 1)]
    (folder / "metrics.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    return folder


def captured(project: Path, step: int, runs: dict[Path, int], **head: Any) -> Path:
    """A capture in the project, as far as a scan looks into it."""
    path = project / HOME / f"20261123-1200{step:02d}-tick{step}"
    path.mkdir(parents=True)
    (path / "state.safetensors").write_bytes(b"")
    told = {"format": 1, "command": ["python", "train.py", "--lr", "3e-3"], "cwd": str(project), "kind": "loss"}
    (path / HEAD).write_text(json.dumps({**told, "rank": None, **head}))
    note_step(path, step, runs)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run that fails in step 30."""
    run(tmp_path / "runs" / "exp7", [*(1 / n for n in range(1, 30)), *[float("nan")] * 9])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_of(path: str) -> list[str]:
    """What a scan advises."""
    (report,) = api.scan(path).runs
    assert report.diagnosis is not None
    return list(report.diagnosis.next)


def test_the_step_is_repeated_from_its_capture(project: Path) -> None:
    """By the command that was captured, without a checkpoint; the program's own checkpoint is still known."""
    (project / "runs" / "exp7" / "ckpt_20.pt").write_bytes(b"")
    path = captured(project, 30, {project / "runs" / "exp7": 30})
    again = f"postmortem replay {path.relative_to(project)} -- python train.py --lr 3e-3"
    assert next_of("runs/exp7")[0] == again
    (report,) = api.scan("runs/exp7").runs
    assert [Path(c.path).name for c in report.checkpoints] == ["ckpt_20.pt"]


@pytest.mark.parametrize("step", [12, 30])
def test_a_capture_that_was_asked_for_is_of_its_own_step_only(project: Path, step: int) -> None:
    """It repeats the step at fault if it is of that one."""
    captured(project, step, {project / "runs" / "exp7": step}, kind="requested")
    assert any("tick30 -- python" in line for line in next_of("runs/exp7")) is (step == 30)


def test_a_capture_of_another_run_is_not_meant(project: Path) -> None:
    """Two runs of one project: each has its own."""
    other = run(project / "runs" / "exp8", [1.0, 2.0])
    captured(project, 30, {other: 30})
    assert captures_of(project / "runs" / "exp7") == []
    assert [c.step for c in captures_of(other)] == [30]


def test_of_one_rank_only_the_command_of_the_run_is_typed(project: Path) -> None:
    """A rank's own command starts no training."""
    captured(project, 30, {project / "runs" / "exp7": 30}, rank=1)
    assert not any("--lr 3e-3" in line for line in next_of("runs/exp7"))
    (project / "runs" / "exp7" / "train.sh").write_text("torchrun --nproc-per-node 2 train.py\n")
    assert any("tick30 -- torchrun --nproc-per-node 2 train.py" in line for line in next_of("runs/exp7"))


def test_it_is_no_checkpoint(project: Path) -> None:
    """Neither below a folder nor by itself; a replay of it by a recipe is refused in one line."""
    path = captured(project, 30, {})
    assert find_checkpoints(project) == find_checkpoints(path) == []
    assert not is_checkpoint(path)
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"is a capture: `postmortem replay .*tick30 -- COMMAND`"):
        api.replay(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"command": "rm", "cwd": 3}', '{"command": ["a\\u001bb"], "cwd": "/"}']
)
def test_damage_costs_only_the_command(project: Path, text: str) -> None:
    """Nothing of it is believed that is not of the form that was written."""
    path = captured(project, 30, {project / "runs" / "exp7": 30})
    (path / HEAD).write_text(text)
    assert not any("tick30" in line for line in next_of("runs/exp7"))
    (path / "step.json").write_text(text)
    assert captures_of(project / "runs" / "exp7") == []
