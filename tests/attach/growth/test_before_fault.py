"""A non-finite loss at the end of a growth: what made it grow is looked for, not the operator that overflows."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("torch")

from postmortem.attach.answers import Process
from postmortem.attach.growth.before_fault import growth_before
from postmortem.attach.steps import Pass
from tests import warm

PROGRAM = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
with open("train.log", "a") as log:
    for step in range(40):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f} lr RATE", file=log, flush=True)
        if not torch.isfinite(loss):
            break
"""


def at_fault(*losses: float) -> Process:
    """A process whose steps have these losses, the last of which is the fault."""
    passes = [Pass(tick, loss) for tick, loss in enumerate(losses)]
    return Process(pid=1, passes=passes, fault={"tick": len(losses) - 1, "what": "loss"})


def test_a_growth_ends_in_the_fault() -> None:
    """It begins where the loss leaves its level."""
    found = growth_before(at_fault(7.0, 5.7, 479.0, 1.7e7, 1.1e21, float("inf")), None, None)
    assert found is not None
    assert (found.step, found.usual, found.last, found.steps) == (2, 5.7, 1.1e21, 3)


@pytest.mark.parametrize("losses", [(2.0, 1.5, 1.2, 1.1, float("nan")), (0.5, 1.4, 0.3, 2.0, float("inf"))])
def test_a_fault_out_of_calm_is_no_end_of_a_growth(losses) -> None:
    """The loss is at its level up to the fault."""
    assert growth_before(at_fault(*losses), None, None) is None


def test_the_learning_rate_is_tried_from_before_the_growth_on(tmp_path, monkeypatch, postmortem) -> None:
    """A rate of which the loss grows until it overflows: the divergence is named, and the smaller rate cures it."""
    (tmp_path / "train.py").write_text(PROGRAM.replace("RATE", "3.0"))
    monkeypatch.chdir(tmp_path)
    assert warm.run("train.py").returncode == 0
    called = postmortem("replay", ".", "--format", "json", "--", sys.executable, "train.py")
    assert "postmortem: start 2 of the command, to explain what was found\n" in called.err
    told = json.loads(called.out)
    culprit = told["culprit"]
    assert (culprit["cause"], culprit["phase"], culprit["established"]) == ("divergence", "optimizer", "cured")
    assert {f["name"]: f["cured"] for f in culprit["fixes"]}["lower_lr"] is True
    assert culprit["samples"] is None
    assert told["next"][0].startswith("lower the learning rate")
    assert any("the growth ends at step" in line for line in culprit["how"])


def test_a_rise_over_the_last_two_steps_is_a_growth() -> None:
    """To a thousand times the losses shortly before it, of a loss that began higher; one step alone is none."""
    course = [40.0, 30.0, 12.0, *[5.0 + 0.1 * (i % 7) for i in range(30)]]
    found = growth_before(at_fault(*course, 28.3, 23987.5, float("nan")), None, None)
    assert found is not None
    assert (found.step, found.steps) == (33, 2)
    assert growth_before(at_fault(*course, 23987.5, float("nan")), None, None) is None
