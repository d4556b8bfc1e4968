"""What `check` tries against a silent fault, with real processes, and how it judges the losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional, utils

from postmortem.core.blame import Blame, CheckResult
from postmortem.reporters.check_text import check_lines
from postmortem.silent.facts import Backward, Over
from postmortem.silent.faults import FAULTS
from postmortem.silent.look import Look
from postmortem.silent.trials import Trial, outcome
from tests.silent.test_check import called

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")]

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(256, 6)
TARGET
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, OUT))TYPE
optimizer = OPTIMIZER
for step in range(STEPS):
    a, b = x[step % 8 :: 8]CAST, y[step % 8 :: 8]
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    CLIP
    optimizer.step()
"""
REGRESSION = {"TARGET": "y = x @ torch.randn(6, 1)", "OUT": "1", "LOSS": "nn.functional.mse_loss(model(a).float(), b)"}
USUAL = {
    "OPTIMIZER": "torch.optim.Adam(model.parameters(), 1e-2)",
    "CLIP": "pass",
    "TYPE": "",
    "CAST": "",
    "STEPS": "120",
}
PROGRAMS: dict[str, dict[str, str]] = {
    "missing-zero-grad": {
        **REGRESSION,
        "optimizer.zero_grad()": "pass",
        "OPTIMIZER": "torch.optim.SGD(model.parameters(), 0.1)",
    },
    "bf16-updates-lost": {  # updates of 0.0008 to weights of 1, whose neighbours in bf16 are 0.004 and 0.008 away
        "nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, OUT))": "nn.Linear(6, OUT)",
        **REGRESSION,
        "TARGET": "y = x @ torch.full((6, 1), 1.4)",
        "TYPE": "\nnn.init.ones_(model.weight)\nmodel.bfloat16()",
        "CAST": ".bfloat16()",
        "OPTIMIZER": "torch.optim.SGD(model.parameters(), 1e-3)",
        "STEPS": "600",
    },
}


def answer(folder: Path, changes: dict[str, str], *options: str) -> list[dict[str, Any]]:
    text = TRAIN
    for mark, code in {**USUAL, **changes}.items():
        assert mark in text
        text = text.replace(mark, code)
    (folder / "train.py").write_text(text)
    done = called(folder, "check", *options, "--format", "json", "--", sys.executable, "train.py")
    assert done.returncode == 1, done.stderr
    faults: list[dict[str, Any]] = json.loads(done.stdout)["faults"]
    return faults


def test_a_cure_is_tried_in_a_second_run(tmp_path: Path) -> None:
    """With the change the loss ends lower, and both runs begin alike where the change is none of the loss. The other
    trials are made in forked processes, by the battery of the faults."""
    name = "bf16-updates-lost"
    tried = next(f for f in answer(tmp_path, PROGRAMS[name]) if f["name"] == name)["tried"]
    assert len(tried) == 1
    assert tried[0]["cured"] is True, tried
    assert tried[0]["loss"][1] < tried[0]["loss_without"][1]
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_nothing_is_tried_where_it_is_not_wanted(tmp_path: Path) -> None:
    """`--no-try`."""
    assert [f["tried"] for f in answer(tmp_path, PROGRAMS["missing-zero-grad"], "--no-try")] == [[]]


def tried(name: str) -> list[None]:
    """Makes the change of a fault in this process -> a list that gets an element whenever it has an effect."""
    used: list[None] = []
    trial = next(kind.trial for kind in FAULTS if kind.name == name)
    assert trial is not None
    trial.start(lambda: used.append(None))
    return used


def test_losses_get_what_they_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed functions give the loss of the mended program; what is right already stays as it is."""
    torch.manual_seed(0)
    logits, classes = torch.randn(8, 5), torch.arange(8) % 5
    column, row, labels = torch.randn(8, 1), torch.randn(8), torch.randint(0, 2, (8, 1)).float()
    right = functional.cross_entropy(logits, classes)
    binary = functional.binary_cross_entropy_with_logits(column, labels)
    paired = functional.mse_loss(column, row[:, None])
    for name in (
        "cross_entropy",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
    ):
        monkeypatch.setattr(functional, name, getattr(functional, name))  # given back after the test
    used = [tried(name) for name in ("softmax-before-cross-entropy", "double-sigmoid", "loss-broadcast")]
    assert torch.equal(functional.cross_entropy(logits, classes), right)
    assert torch.equal(functional.mse_loss(column, row[:, None]), paired)
    assert torch.equal(functional.binary_cross_entropy_with_logits(column, target=labels), binary)
    assert used == [[], [], []]
    torch.testing.assert_close(functional.cross_entropy(logits.softmax(1), target=classes), right)
    torch.testing.assert_close(torch.nn.BCEWithLogitsLoss()(column.sigmoid(), labels), binary)
    torch.testing.assert_close(functional.mse_loss(column, row), paired)
    assert [len(each) for each in used] == [1, 1, 1]


def test_gradients_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm is computed as before."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        for owner in (utils, utils.clip_grad):
            monkeypatch.setattr(owner, name, getattr(owner, name))
    used = tried("gradient-clip-too-small")
    p = torch.ones(4, requires_grad=True)
    p.grad = torch.full((4,), 3.0)
    assert float(utils.clip_grad_norm_([p], 0.1)) == 6.0
    utils.clip_grad_value_([p], 0.1)
    assert p.grad.tolist() == [3.0] * 4
    assert len(used) == 2


TRIAL = Trial("the change", lambda used: None)


def look(losses: list[float]) -> list[Look]:
    return [Look([*(Backward(i, loss) for i, loss in enumerate(losses)), Over(len(losses), True)])]


@pytest.mark.parametrize(
    ("without", "with_it", "cured"),
    [
        ([2.0] * 40, [2.0 - i / 40 for i in range(40)], True),
        ([2.0] * 40, [2.0] * 40, None),  # the change came later, or touches nothing of this loss
        ([2.0] * 40, [2.0, 2.01] * 20, False),
        ([2.0, 1.0] * 20, [2.0, 0.98] * 20, False),  # within the noise
        ([0.0, 0.0, 0.0, 9.0] * 10, [0.3] * 40, True),  # jumps: low values, high mean
        ([1.0] * 40, [0.5] * 39 + [float("nan")], False),
        ([1.0] * 40, [1.5] * 40, False),
    ],
)
def test_the_losses_of_both_runs_are_compared(without: list[float], with_it: list[float], cured: bool | None) -> None:
    """The last fifth of the steps that both made."""
    assert outcome(TRIAL, look(without), look(with_it), used=True)["cured"] is cured


def test_what_cannot_be_compared_is_said() -> None:
    """No effect, and too few steps: neither cured nor not."""
    none = outcome(TRIAL, look([1.0] * 40), look([1.0] * 40), used=False)
    few = outcome(TRIAL, look([1.0] * 40), look([0.5] * 4), used=True)
    assert (none["cured"], few["cured"]) == (None, None)
    fault = Blame("missing-zero-grad", "step-order", None, None, "…", tried=(none,))
    shown = "\n".join(check_lines(CheckResult(("python",), faults=(fault,), steps=40), 200))
    assert "could not be tried: the change: the program does not call the torch functions that this changes" in shown
