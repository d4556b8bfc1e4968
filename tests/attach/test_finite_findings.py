"""`replay RUN -- COMMAND` where every loss of the log is finite: a jump, and a training that does not learn."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from postmortem.attach.jumps import Jump
from tests import warm

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
import torch

torch.manual_seed(0)
x = torch.randn(960, 8)
y = x @ torch.randn(8, 1)
{data}
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
log = open("metrics.csv", "w", buffering=1)
print("step,loss", file=log)
for step in range(110):
    at = step % 60 * 16
    loss = torch.nn.functional.mse_loss(model(x[at : at + 16]), y[at : at + 16])
    {update}
    print(f"{{step}},{{loss.item():.6f}}", file=log)
"""
UPDATE = (
    "optimizer.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1); optimizer.step()"
)

NORMS = (
    "optimizer.zero_grad(); loss.backward(); n = torch.nn.utils.clip_grad_norm_(model.parameters(), 1); "
    "optimizer.step(); step == 0 and print('step,grad_norm', file=open('norms.csv', 'w')); "
    "print(f'{step},{n.item():.6f}', file=open('norms.csv', 'a'))"
)
OUTLIER = "torch.nn.functional.mse_loss = torch.nn.functional.smooth_l1_loss; x[693] *= 60; y[693] = 0"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmortem):
    """answer(program) -> what a replay of its run by its command says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def replayed(data: str = "pass", update: str = UPDATE, options: tuple[str, ...] = ()):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "train.py").write_text(TRAIN.format(data=data, update=update))
        monkeypatch.chdir(tmp_path / "run")
        command = [sys.executable, "train.py"]
        assert warm.run("train.py").returncode == 0
        return json.loads(postmortem("replay", ".", *options, "--format", "json", "--", *command).out)

    return replayed


def test_the_samples_that_carry_a_jump(answer) -> None:
    """By attempts with others in their place; the step is the log's."""
    told = answer(data="y[700] = 4000.0; y[699] = -5000.0")
    culprit = told["culprit"]
    assert (culprit["cause"], culprit["phase"], culprit["step"]) == ("outlier-sample", "data", 43)
    assert culprit["samples"] == [11, 12]
    assert culprit["established"] == "cured"
    assert culprit["tensor"]["loss_without"] < 100 < culprit["tensor"]["loss"]
    assert told["next"][0].startswith("inspect samples 11, 12 of the batch: ")


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_the_samples_of_a_jump_without_forks(answer, what: str) -> None:
    """The process repeats the step itself, in a second run."""
    data, update = ("y[700] = 4000.0; y[699] = -5000.0", UPDATE) if what == "loss" else (OUTLIER, NORMS)
    culprit = answer(data=data, update=update, options=("--no-fork",))["culprit"]
    samples = [11, 12] if what == "loss" else [5]
    assert (culprit["cause"], culprit["samples"], culprit["step"]) == ("outlier-sample", samples, 43)
    key = what.replace(" ", "_")
    assert culprit["tensor"][f"{key}_without"] < culprit["tensor"][key] / 5
    assert culprit["tensor"][f"usual_{key}"] < culprit["tensor"][key] / 5


def test_a_jump_of_a_whole_batch_blames_no_sample(answer) -> None:
    """Each of its samples alone makes the loss high, also at the weights of earlier steps."""
    culprit = answer(data="y[688:704] += 4000.0")["culprit"]
    assert (culprit["cause"], culprit["phase"], culprit["samples"]) == ("bad-input", "data", None)
    assert any("finite and far above" in line for line in culprit["how"])
    assert any(line.startswith("all weights held from step 33 on: the loss is at most 1.6") for line in culprit["how"])


def test_a_training_that_does_not_learn(answer) -> None:
    """The silent fault that explains it, with its line."""
    told = answer(update="loss.backward(); optimizer.zero_grad(); optimizer.step()")
    culprit = told["culprit"]
    assert (culprit["cause"], culprit["phase"]) == ("gradients-cleared-before-step", "optimizer")
    assert "optimizer.zero_grad()" in culprit["code"]
    assert told["next"][0].startswith("`postmortem explain gradients-cleared-before-step`")


RISE = "optimizer.param_groups[0]['lr'] = 0.002 if step < 70 else 0.9; optimizer.zero_grad(); loss.backward(); "
RISE += "optimizer.step(); stop = loss > 1e6"


def test_a_rate_that_rises(answer) -> None:
    """With the rate before the rise the loss stays calm."""
    culprit = answer(update=RISE + "\n    if stop: break", options=("--no-fix",))["culprit"]
    assert (culprit["cause"], culprit["phase"], culprit["established"]) == ("optimizer-update", "optimizer", "cured")
    assert [f["cured"] for f in culprit["fixes"] if f["name"] == "lower_lr"] == [True]
    assert "the learning rate goes from 0.002 to 0.9 at step 70" in culprit["how"]


def test_the_sample_of_a_gradient_spike(answer) -> None:
    """By attempts with others in its place, as for a loss."""
    culprit = answer(data=OUTLIER, update=NORMS)["culprit"]
    assert (culprit["cause"], culprit["samples"], culprit["step"]) == ("outlier-sample", [5], 43)


def test_high_losses_at_the_start_are_no_jump() -> None:
    """Only after the loss was calm once."""
    jump = Jump(above=5.0, below=2.0)
    assert [jump.at(loss) for loss in (9.0, 6.0, 3.0, 1.5, 4.0, float("nan"), 7.0)] == [False] * 6 + [True]


def test_jumps_before_the_one_that_is_meant() -> None:
    """They are counted, as the log shows them, and passed over."""
    jump = Jump(above=5.0, below=2.0, earlier=2)
    assert [jump.at(loss) for loss in (1.0, 8.0, 1.0, 8.0, 9.0)] == [False] * 4 + [True]


def test_a_sample_that_comes_back_each_epoch(answer) -> None:
    """Its other jump makes neither the level nor the jump that is meant."""
    rows = (
        "y[3] = 4000.0; order = torch.arange(960).reshape(60, 16).roll(-57, 0).reshape(-1); x, y = x[order], y[order]"
    )
    culprit = answer(data=rows)["culprit"]
    assert (culprit["cause"], culprit["samples"]) == ("outlier-sample", [3])
    assert culprit["step"] in (3, 63)
