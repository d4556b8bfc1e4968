"""`postmortem run --level`: the history of a training, by the readers of `scan`."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch

from postmortem import scan
from postmortem.attach import driver
from postmortem.attach.flags import Tick
from postmortem.attach.levels.rows import Rows
from postmortem.attach.levels.watch import Levels
from postmortem.attach.measure.later import Later
from postmortem.checkpoints.histories import ask_level, clear, noted_watches
from postmortem.core.view import View
from postmortem.reporters.shared.panels import panel_of
from postmortem.runs.assemble import read_runs
from postmortem.runs.group import discover

TRAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.rand(96, 8), batch_size=4)
log = open("metrics.csv", "w", buffering=1)
print("step,loss", file=log)
for step, x in enumerate(loader, start=100):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if step == int(sys.argv[1]):
        loss = loss / (loss.detach() * 0) * 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step},{loss.item():.6f}", file=log)
torch.save(model.state_dict(), "last.pt")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a training."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def roles(folder: Path) -> dict[str, str | None]:
    """Tag -> role, as a scan reads the folder."""
    found, _ = discover([folder])
    (run,) = read_runs(found[0], roles=None, roots=[folder], shared=())
    return {s.tag: s.role for s in View(run).series}


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
def test_a_history_that_is_read_with_its_roles(project: Path, level: str) -> None:
    """Its rows count as the program's log; its losses are those; what was trained is the same at every level."""
    history = project / "postmortem-report" / "history"
    code, result = driver.watch([sys.executable, "train.py", "-1"], level=level, history=history)
    assert (code, result.culprit.phase) == (0, "none")
    rows = [json.loads(line) for line in (history / "history.jsonl").read_text().splitlines()]
    logged = dict(line.split(",") for line in (project / "metrics.csv").read_text().splitlines()[1:])
    assert len(rows) > 12
    assert all(row["step"] == row["tick"] + 100 for row in rows)
    assert all(row["loss"] == pytest.approx(float(logged[str(row["step"])]), rel=1e-5, abs=1e-6) for row in rows)
    found = roles(history)
    wanted = {"step_time": "step_time", "data_time": "data_time", "memory_mb": "memory", "lr": "lr", "loss": "loss"}
    if level != "basic":
        wanted |= {"grad_norm": "grad_norm", "grad_norm/layer.0": "layer_grad_norm"}
    assert {tag: found.get(tag) for tag in wanted} == wanted
    assert any(tag.startswith("absmax/backward.mm") for tag in found) is (level == "extreme")
    for row in rows if level == "advanced" else ():
        if "grad_norm" in row:  # without momentum an update is the gradient times the learning rate
            assert row["update_norm/layer.0"] == pytest.approx(0.01 * row["grad_norm/layer.0"], rel=1e-3)
            layers = [row["grad_norm/layer.0"], row["grad_norm/layer.2"]]
            assert row["grad_norm"] == pytest.approx(math.hypot(*layers), rel=1e-4)


def test_the_page_draws_what_was_measured(project: Path) -> None:
    """Norms by layer, seconds and memory have panels beside the loss; each of them is drawn once."""
    history = project / "postmortem-report" / "history" / "a"
    driver.watch([sys.executable, "train.py", "-1"], level="advanced", history=history)
    (run,) = scan(project, draw=True).runs
    assert run.drawing is not None
    names = {panel_of(curve) for curve in run.drawing.curves}
    assert {"loss", "gradients by layer", "updates by layer", "seconds per step", "memory (MB)"} <= names
    assert len({(c.tag, c.rank) for c in run.drawing.curves}) == len(run.drawing.curves)


def test_levels_change_nothing(project: Path) -> None:
    """The same weights, bit for bit."""
    weights = []
    for level in ("basic", "extreme"):
        assert driver.watch([sys.executable, "train.py", "-1"], level=level, history=project / level)[0] == 0
        weights.append(torch.load("last.pt"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_read_late_as_on_a_device(project: Path) -> None:
    """The step and the loss at fault are those; the program had gone on by then."""
    history = project / "history"
    command = [sys.executable, "train.py", "112"]
    code, result = driver.watch(command, level="advanced", history=history, deferred=True, fix=False)
    assert (code, result.tick, result.step) == (0, 12, 112)
    rows = [json.loads(line) for line in (history / "history.jsonl").read_text().splitlines()]
    assert [row["tick"] for row in rows] == sorted(row["tick"] for row in rows)
    assert math.isnan(rows[-1]["loss"])
    assert rows[-1]["tick"] == 12


def test_a_file_that_does_not_grow_without_limit(tmp_path: Path) -> None:
    """Rows become rarer; the last ones are there; each line is whole."""
    rows = Rows(tmp_path, lambda: 3, limit=20_000)
    for i in range(20_000):
        rows.add({"tick": i})
        if i % 50 == 0:
            rows.flush()
    rows.flush()
    path = tmp_path / "history-rank3.jsonl"
    ticks = [json.loads(line)["tick"] for line in path.read_text().splitlines()]
    assert path.stat().st_size <= 20_000
    assert ticks == sorted(ticks)
    assert ticks[-1] > 15_000


def test_a_second_training_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Neither is lost."""
    for tick in (1, 2):
        rows = Rows(tmp_path, lambda: None)
        rows.add({"tick": tick})
        rows.flush()
    assert json.loads((tmp_path / "history.jsonl").read_text()) == {"tick": 1}
    assert json.loads((tmp_path / "training-2" / "history.jsonl").read_text()) == {"tick": 2}


def test_a_history_that_cannot_be_written_ends_no_training(project: Path) -> None:
    """The program goes on; one line says it."""
    (project / "history").write_text("a file")
    code, result = driver.watch([sys.executable, "train.py", "-1"], history=project / "history" / "x")
    assert code == 0
    assert any("no history is kept" in note for note in result.notes)


def test_the_level_is_set_while_it_trains(tmp_path: Path) -> None:
    """A word in a file beside the history: what is measured changes within a second and a step; its end is told."""
    started = []

    def step(levels: Levels, number: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        levels.before_update(optimizer)
        levels.after_update(optimizer, skipped=False)
        levels.tick(number)
        levels.told(Tick(number, [1.0]))

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    levels = Levels("basic", tmp_path, lambda: None, Later(), started.append)
    number = 0
    for level, more in (("basic", 0.1), ("advanced", 1.3)):
        until = time.monotonic() + more
        while time.monotonic() < until:
            step(levels, number, model, optimizer)
            levels._rows.flush()
            number += 1
            time.sleep(0.01)
        assert noted_watches(tmp_path)[0]["level"] == level
        ask_level(tmp_path, "advanced")
    levels.close()
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert "grad_norm" not in rows[0]
    assert "grad_norm" in rows[-1]
    assert "ended" in noted_watches(tmp_path)[0]
    assert started == []


def test_a_history_that_is_cleared_goes_on(tmp_path: Path) -> None:
    """Its next rows are whole, and its limit is that of an empty file."""
    rows = Rows(tmp_path, lambda: None, limit=4_000)
    for i in range(1000):
        rows.add({"tick": i})
        rows.flush()
    assert clear(tmp_path) > 3_000
    for i in range(1000, 1200):
        rows.add({"tick": i})
        rows.flush()
    ticks = [json.loads(line)["tick"] for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert ticks[0] >= 1000
    assert ticks[-100:] == sorted(ticks[-100:])
    assert len(ticks) > 100
