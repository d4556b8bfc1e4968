"""Processes that cannot be forked: the command is run again, and repeats the step itself."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="shuts the command in")]

START = """
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    X, share = torch.rand(64, 3), torch.ones(64, 1)
    share[41] = 0.0
    log = open("run/log.txt", "a", buffering=1)
"""
PROGRAMS = {
    "shuffles, drops out, schedules and scales": """
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        step = 0
        for epoch in range(2):
            for x, part in DataLoader(list(zip(X, share)), 4, shuffle=True):
                loss = ((net(x) - 1) / part).square().mean()  # at fault
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                print(f"step {step} loss {loss.item():.6f}", file=log)
                step += 1
    """,
    "steps two optimizers, and computes its learning rate": """
        G, D = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        ofG, ofD = torch.optim.Adam(G.parameters()), torch.optim.SGD(D.parameters(), 0.01)
        draw = torch.Generator().manual_seed(1)
        for step in range(40):
            ofD.param_groups[0]["lr"] = 0.01 / (step + 1)
            rows = torch.randint(64, (4,), generator=draw)
            loss = ((D(G(X[rows]).detach()) - 1) / share[rows]).square().mean()  # at fault
            ofD.zero_grad()
            loss.backward()
            ofD.step()
            fooled = (1 - D(G(X[rows]))).square().mean()
            ofG.zero_grad()
            fooled.backward()
            ofG.step()
            print(f"step {step} loss {loss.item():.6f}", file=log)
    """,
    "ends with the first loss that is not finite": """
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step, (x, part) in enumerate(DataLoader(list(zip(X, share)), 4)):
            loss = ((net(x) - 1) / part).square().mean()  # at fault
            print(f"step {step} loss {loss.item():.6f}", file=log)
            if not torch.isfinite(loss):
                raise FloatingPointError("the loss is not finite")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
}
ONLY_ONCE = """
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(6):
        x, part = torch.randn(4, 3), torch.ones(4, 1)
        if step == 4:
            part = part.index_fill(0, torch.tensor([3]), 0.0)
        loss = ((net(x) - 1) / part).square().mean()  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", file=log)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an empty run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").write_text("")
    return tmp_path


def line_at_fault(folder: Path, program: str) -> int:
    """Writes the program -> the number of its line at fault."""
    text = textwrap.dedent(START) + textwrap.dedent(program)
    (folder / "train.py").write_text(text)
    return next(n for n, line in enumerate(text.splitlines(), 1) if "# at fault" in line)


def replayed(postmortem, way: str) -> dict[str, Any]:
    """What the replay says, without words."""
    called = postmortem("replay", "run", way, "--format", "json", "--", sys.executable, "train.py")
    assert called.code == 1, called.err
    answer = json.loads(called.out)
    culprit = answer["culprit"]
    fields = ("phase", "op", "line", "samples", "established", "precision_only", "suggestion")
    tried = {f["name"]: (f["cured"], f["loss"]) for f in culprit["fixes"]}
    return {"tick": answer["tick"], **{name: culprit[name] for name in fields}, "tried": tried, "how": culprit["how"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_with_forking_switched_off(folder: Path, postmortem, name: str) -> None:
    """As on a GPU: everything that a forked copy finds, down to the losses with each fix; no file changes."""
    line = line_at_fault(folder, PROGRAMS[name])
    forked = replayed(postmortem, "--fork")
    alone = replayed(postmortem, "--no-fork")
    assert any(text.startswith("repeated from a copy of the process") for text in forked.pop("how"))
    assert any(text.startswith("repeated in the process") for text in alone.pop("how"))
    assert alone == forked
    assert (alone["op"], alone["line"], alone["tried"]["drop_sample"][0]) == ("div", line, True)
    assert (folder / "run" / "log.txt").read_text() == ""


def test_a_step_that_cannot_be_repeated(folder: Path, postmortem) -> None:
    """The program never comes to its place again: operator, line and row are named, and no change is claimed."""
    line = line_at_fault(folder, ONLY_ONCE)
    alone = replayed(postmortem, "--no-fork")
    assert (alone["tick"], alone["phase"], alone["op"], alone["line"]) == (4, "forward", "div", line)
    assert (alone["samples"], alone["established"], alone["tried"]) == ([3], "observed", {})
    assert any("no change of the step was tried" in text for text in alone["how"])
    assert (folder / "run" / "log.txt").read_text() == ""
