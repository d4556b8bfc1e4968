"""Processes that cannot be forked: the command is run a second time and names the culprit itself."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from postmortem.attach import driver

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="shuts the command in")]

TRAINING = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    log = open("run/log.txt", "a", buffering=1)
    for step in range(6):
        x, share = torch.randn(4, 3), torch.ones(4)
        if step == 4:
            share = share.index_fill(0, torch.tensor([3]), 0.0)
        loss = (net(x).squeeze(-1) / share).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", file=log)
"""


def test_a_process_that_cannot_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with forking switched off: the operator, its line and its row; nothing of the user's changes."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "log.txt"
    log.write_text("")
    monkeypatch.chdir(tmp_path)
    result = driver.rerun(tmp_path / "run", [sys.executable, "train.py"], fork=False)
    culprit = result.culprit
    assert (result.tick, culprit.phase, culprit.op, culprit.samples) == (4, "forward", "div", (3,))
    assert (Path(culprit.file or "").name, culprit.line) == ("train.py", 11)
    assert (culprit.established, culprit.fixes) == ("observed", ())
    assert log.read_text() == ""
