"""`postmortem run` captures a step, `replay CAPTURE -- COMMAND` repeats it bit for bit, without a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from postmortem import api
from postmortem.attach.capture.folder import Capture, Place
from postmortem.core.errors import ReplayError

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

DROPS = """
    import sys, time, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(24, 6)
    x[17, 2] = float(sys.argv[1])
    torch.manual_seed(int(sys.argv[2]))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    step = 0
    for epoch in range(int(sys.argv[3])):
        for (rows,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True, num_workers=int(sys.argv[4])):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1 + step)
            optimizer.zero_grad()
            loss = (model(rows) ** 2).mean() + torch.log(8 - rows.amax(1)).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if len(sys.argv) > 5:
                open("ready", "w").close()
                time.sleep(0.05)
"""
RAISES = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def loss_of(model, rows):
    if (rows > 90).any():
        raise IndexError("no such row")
    return (model(rows) ** 2).mean()

torch.manual_seed(0)
model = nn.Embedding(90, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for (rows,) in DataLoader(TensorDataset(torch.tensor([*range(30), 95, 3, 4, 5])), batch_size=4):
    optimizer.zero_grad()
    loss_of(model, rows).backward()
    optimizer.step()
"""


def program(folder: Path, source: str) -> list[str]:
    """The command of a training with this source."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    return [sys.executable, str(folder / "train.py")]


def run(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    """`postmortem run -- command`, in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "postmortem", "run", "--no-fix", "--", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def captures(folder: Path) -> list[Path]:
    """What was captured, the oldest first."""
    return Place(folder / "postmortem-report" / "captures").whole()


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which replayed commands run as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_a_fault_is_repeated_from_its_capture(at: Path) -> None:
    """In the second epoch, from a program that begins with other weights, other data order and another random state."""
    workers = "2"
    command = program(at, DROPS)
    watched = run(at, [*command, "9", "0", "2", workers])
    said = watched.communicate(timeout=100)[1]
    (path,) = captures(at)
    assert f"postmortem replay {path.relative_to(at)} -- " in said
    head = Capture(path).head
    assert head["losses"] == ["nan"]
    assert {p for p in head["code"] if Path(p).name != "sitecustomize.py"} == {str(at / "train.py")}
    before = {p: p.stat().st_mtime_ns for p in at.rglob("*")}
    result = api.rerun(path, [*command, "1", "7", "9", workers], fix=False)
    assert (result.culprit.phase, result.culprit.op) == ("forward", "log"), result.culprit
    assert result.culprit.samples is not None
    assert len(result.culprit.samples) == 1
    assert result.fidelity.ok
    assert {p: p.stat().st_mtime_ns for p in at.rglob("*")} == before


def test_a_requested_capture_repeats_a_healthy_step(at: Path) -> None:
    """The loss is the same in every bit; a changed file is told, and with other data nothing is claimed."""
    command = program(at, DROPS)
    (at / "postmortem-report" / "captures").mkdir(parents=True)
    (at / "postmortem-report" / "captures" / "request").touch()
    run(at, [*command, "1", "0", "1", "0"]).communicate(timeout=100)
    (path,) = captures(at)
    assert not (path.parent / "request").exists()
    head = Capture(path).head
    (kept,) = head["losses"]
    assert float.fromhex(kept) > 0
    assert head["kind"] == "requested"
    (at / "train.py").write_text((at / "train.py").read_text() + "\n# a comment\n")
    result = api.rerun(path, [*command, "1", "7", "9", "0"], fix=False)
    assert (result.fidelity.ok, result.fidelity.exact, result.culprit.phase) == (True, 1, "none")
    assert result.judged
    assert any("train.py is not the file" in line for line in result.culprit.how)
    (at / "train.py").write_text((at / "train.py").read_text().replace("model(rows) ** 2", "model(rows) ** 4"))
    other = api.rerun(path, [*command, "1", "7", "9", "0"], fix=False)
    assert not other.fidelity.ok
    assert not other.judged
    (at / "train.py").write_text((at / "train.py").read_text().replace("Linear(6, 8)", "Linear(6, 8, bias=False)"))
    with pytest.raises(ReplayError, match=r"does not fit this program: the optimizer AdamW|none of this name"):
        api.rerun(path, [*command, "1", "7", "9", "0"], fix=False)


def test_a_request_by_a_file_while_it_trains(at: Path) -> None:
    """The folder is there from the start on, and without captures it is gone at the end."""
    command = program(at, DROPS)
    watched = run(at, [*command, "1", "0", "4", "0", "slow"])
    wait_for(at / "ready")
    (at / "postmortem-report" / "captures" / "request").touch()
    watched.communicate(timeout=100)
    assert len(captures(at)) == 1
    (at / "other").mkdir()
    run(at / "other", ["true"]).communicate(timeout=100)
    assert list((at / "other").iterdir()) == []


def test_an_exception_alone(at: Path) -> None:
    """Without a non-finite value: the step is captured, which is told, and raises again in the replay."""
    (at / "train.py").write_text(RAISES)
    said = run(at, [sys.executable, "train.py"]).communicate(timeout=100)[1]
    (path,) = captures(at)
    assert f"is captured (0.0 MB), to repeat it: postmortem replay {path.relative_to(at)} -- " in said
    assert "postmortem: the program raised IndexError: no such row (train.py:7)" in said
    result = api.rerun(path, [sys.executable, "train.py"], fix=False)
    assert result.culprit.phase == "none"
    assert result.raised is not None
    assert (result.raised.type, result.raised.line) == ("IndexError", 7)
    (at / "train.py").write_text(RAISES.replace("model(rows)", "model(rows % 90)").replace("> 90", "> 99"))
    other = api.rerun(path, [sys.executable, "train.py"], fix=False)
    assert "here it ends without one: the step is not repeated" in other.fidelity.note
    assert not other.judged


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR2])
def test_signals(at: Path, sent: signal.Signals) -> None:
    """SIGTERM ends the program as it would without us, after a capture; SIGUSR2 asks for one, and it goes on."""
    command = program(at, DROPS)
    watched = run(at, [*command, "1", "0", "4", "0", "slow"])
    wait_for(at / "ready")
    watched.send_signal(sent)
    watched.communicate(timeout=100)
    assert watched.returncode == (128 + signal.SIGTERM if sent == signal.SIGTERM else 0)
    (path,) = captures(at)
    assert Capture(path).head["kind"] == "requested"
    assert {"state", "batches"} <= {name.partition(".")[0] for name in Capture(path).head["files"]}


def test_the_cli_refuses_what_a_capture_cannot_do(at: Path) -> None:
    """One line, no traceback."""
    (at / "capture.json").write_text(json.dumps({"format": 99}))
    asked: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    step = subprocess.run([sys.executable, "-m", "postmortem", "replay", ".", "--step", "3", "--", "true"], **asked)
    assert step.returncode == 2
    assert "--step" in step.stderr
    assert "Traceback" not in step.stderr
