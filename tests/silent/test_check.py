"""`check` and `run --why` with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.cases import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")]

TRAIN = """
import pathlib, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    CLEAR
    loss.backward()
    optimizer.step()
    pathlib.Path("steps").open("a").write("x")
    if "--short" in sys.argv and pathlib.Path("steps").stat().st_size == 12:
        print("loss", loss.item())
        sys.exit(7)
"""


def called(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "postmortem", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_check_ends_the_program_and_leaves_its_folder_alone(tmp_path: Path) -> None:
    """The program never ends by itself; the answer names the line, and no file is written."""
    (tmp_path / "train.py").write_text(TRAIN.replace("CLEAR", "pass"))
    done = called(tmp_path, "check", "--steps", "20", "--format", "json", "--", sys.executable, "train.py")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert [(f["name"], f["family"], f["line"]) for f in answer["faults"]] == [("missing-zero-grad", "step-order", 9)]
    assert Path(answer["faults"][0]["file"]).name == "train.py"
    assert answer["schema_version"] == 1
    assert answer["steps"] == 20
    assert answer["notes"] == []
    assert "missing-zero-grad" in answer["checked"]
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_why_keeps_output_and_exit_code(tmp_path: Path) -> None:
    """The program runs for real; the checklist comes on stderr."""
    (tmp_path / "train.py").write_text(TRAIN.replace("CLEAR", "optimizer.zero_grad()"))
    plain = subprocess.run([sys.executable, "train.py", "--short"], cwd=tmp_path, capture_output=True, text=True)
    (tmp_path / "steps").unlink()
    done = called(tmp_path, "run", "--why", "--", sys.executable, "train.py", "--short")
    assert (done.returncode, done.stdout) == (7, plain.stdout)
    assert "no fault found in 12 optimizer steps" in done.stderr
    assert "ok           missing-zero-grad" in done.stderr


def test_a_program_without_a_training(tmp_path: Path) -> None:
    """One line that says so, and exit code 2."""
    (tmp_path / "train.py").write_text("print('no torch here')")
    done = called(tmp_path, "check", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "no process of the command stepped an optimizer" in done.stderr
    assert "no torch here" in done.stderr
