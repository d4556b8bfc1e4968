"""`postmortem run` looks at parameters in some steps only: which step is named where the fault is noticed later."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

NORMALISED = """
import torch

class Normalised(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.01))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])

torch.manual_seed(0)
experts = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(3))
optimizer = Normalised(experts.parameters())
for step in range(20):
    chosen = 0 if step in (0, 13) else 1 + step % 2
    x = torch.randn(8, 4)
    loss = (experts[chosen](x) - x[:, :1]).pow(2).mean() * (step != 9)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TWO = """
import torch

w = torch.nn.Parameter(torch.ones(3))
first = torch.optim.SGD([w], lr=0.01)
second = torch.optim.RMSprop([w], lr=0.01, eps=0.0)
for step in range(6):
    loss = (w * torch.tensor([0.0, 1.0, 2.0])).sum()
    first.zero_grad()
    loss.backward()
    first.step()
    if step == 4:
        second.step()
"""
AHEAD = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(10):
    x = torch.randn(8, 4)
    weight = float(step != 7)
    (model(x).square().mean() * weight).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        moves = [p.grad * 0.05 / norm for p in model.parameters()]
        for p, move in zip(model.parameters(), moves):
            p.add_(move)
    optimizer.zero_grad()
    (model(x).square().mean() * weight).backward()
    with torch.no_grad():
        for p, move in zip(model.parameters(), moves):
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
"""
CASES = {
    "a parameter that is not used again at once": (NORMALISED, 9, "parameter", "p.grad / p.grad.norm()"),
    "the second of two optimizers": (TWO, 5, "parameter", "second.step()"),
    "changed by the program in the step": (AHEAD, 7, "loss", "0.05 / norm"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_step_that_made_them_non_finite(tmp_path: Path, monkeypatch, postmortem, case: str) -> None:
    """Its line, and its number, whatever was looked at first."""
    script, tick, kind, line = CASES[case]
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    called = postmortem("run", "--no-fix", "--format", "json", "--", sys.executable, "train.py")
    answer = json.loads(called.out)
    assert answer["tick"] == tick, called
    culprit = answer["culprit"]
    assert line in (culprit["code"] or ""), culprit
    said = {"parameter": "parameters are non-finite after", "loss": "is non-finite"}[kind]
    assert any(said in how for how in culprit["how"]), culprit["how"]
