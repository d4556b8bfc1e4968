"""The loss that a fix is compared with is that of the step before the fault, not of a step at or after it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

TRAIN = """
import torch

torch.manual_seed(0)
x = torch.rand(6, 4) + 0.1
layer = torch.nn.Linear(4, 8)
last = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*layer.parameters(), *last.parameters()], lr=0.01)
for step in range(9):
    batch = x.clone()
    if step == 5:
        batch[2, 0] = 0
    loss = (last(torch.tanh(layer(torch.log(batch)))) - step).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("losses.txt", "a") as log:
        print(f"step {step} loss {loss.item():.4g}", file=log)
"""


def test_a_finite_loss_with_a_non_finite_gradient(tmp_path: Path, monkeypatch, postmortem) -> None:
    """The fault is seen in the step's gradient, or later in the weights: the step's own loss is not the one before."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    called = postmortem("run", "--format", "json", "--", sys.executable, "train.py")
    answer = json.loads(called.out)
    assert answer["tick"] == 5, called
    logged = dict(line.split(" loss ") for line in (tmp_path / "losses.txt").read_text().splitlines())
    assert logged["step 5"] != "nan"
    cured = [fix for fix in answer["culprit"]["fixes"] if fix["before"] is not None]
    assert cured
    assert {f"{fix['before']:.4g}" for fix in cured} == {logged["step 4"]}
