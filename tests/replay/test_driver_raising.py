"""`postmortem replay` of trainings whose step refuses what is not finite: it raises, and never logs the step at
fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from postmortem.cli.main import main
from tests import warm

pytestmark = pytest.mark.torch

TRAIN = """
import csv, os, sys
import torch
torch.set_num_threads(1)

class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(3, 4)

    def forward(self, x):
        return self.scores(x / x.norm(dim=-1, keepdim=True))

def batch(step):
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(step)) + 0.5
    if step == 12:
        x[3] = 0.0
    return x

def stops(model, x):
    loss = (model(x) ** 2).mean()
    if torch.isnan(loss):
        raise RuntimeError("NaN loss, stopping")
    return loss

def asserts(model, x):
    scores = model(x)
    assert torch.isfinite(scores).all(), "scores blew up"
    return (scores ** 2).mean()

def samples(model, x):
    return -torch.distributions.Categorical(probs=model(x).softmax(-1), validate_args=True).log_prob(torch.zeros(len(x))).mean()

def looks_up(model, x):
    scores = model(x)
    bins = (scores.detach().sigmoid().mean(-1) * 8).long()
    return (torch.arange(8.0)[bins] * scores.mean(-1)).mean()

def make():
    torch.manual_seed(0)
    model = Policy()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

if __name__ == "__main__":
    model, optimizer = make()
    loss_of = globals()[sys.argv[2]]
    os.makedirs(sys.argv[1])
    with open(os.path.join(sys.argv[1], "progress.csv"), "w", newline="") as f:
        log = csv.writer(f)
        log.writerow(["step", "loss"])
        for step in range(16):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            optimizer.step()
            log.writerow([step, loss.item()])
            f.flush()
            if step % 5 == 4:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, os.path.join(sys.argv[1], f"step_{step}.pt"))
"""  # noqa: E501
RECIPE = """
import torch
import train
from postmortem import TrainStep

def recipe(ctx):
    model, optimizer = train.make()
    return TrainStep(model, optimizer, train.{step}, batches=train.batch)
"""


def _trained(folder: Path, step: str) -> Path:
    """A run that died at step 12 with a traceback in train.err, its recipe beside it."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "recipe.py").write_text(RECIPE.format(step=step))
    ended = warm.run(str(folder / "train.py"), str(folder / "run"), step)
    assert ended.returncode == 1
    (folder / "run" / "train.err").write_text(ended.stderr)
    return folder / "run"


def _call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


WAYS = [
    ("stops", "RuntimeError: NaN loss, stopping"),
    ("asserts", "AssertionError: scores blew up"),
    ("samples", "ValueError: Expected parameter probs"),
    ("looks_up", "IndexError: index"),
]


@pytest.mark.parametrize(("step", "said"), WAYS, ids=[way for way, _ in WAYS])
def test_a_step_that_raises_over_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str, said: str) -> None:
    """The culprit is named as usual, what was raised is told, and the step that raised is no part of the fidelity."""
    run = _trained(tmp_path, step)
    code, out, err = _call(capsys, "replay", run, "--format", "json")
    assert (code, err) == (1, "")
    answer = json.loads(out)
    found, fidelity = answer["culprit"], answer["fidelity"]
    assert (answer["step"], found["phase"], found["module"], found["op"], found["samples"]) == (
        12,
        "forward",
        "",
        "div",
        [3],
    )
    assert found["code"] == "return self.scores(x / x.norm(dim=-1, keepdim=True))"
    assert found["established"] == "cured"
    assert {f["name"] for f in found["fixes"] if f["cured"]} == {"drop_sample", "eps"}
    assert (fidelity["ok"], fidelity["compared"], fidelity["exact"]) == (True, 2, 2)
    assert any(said in line for line in found["how"])
    assert any("deterministic" in line for line in found["how"])


def test_repro_of_a_step_that_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--repro gets the operator's inputs although the step does not come to its end."""
    code, out, _ = _call(capsys, "replay", _trained(tmp_path, "samples"), "--repro", tmp_path / "shown")
    assert code == 1
    assert "a stand-alone script that reproduces the failure" in out
    said = warm.run(str(tmp_path / "shown" / "repro.py")).stdout
    assert said.startswith("reproduced: non-finite values")


def test_a_step_that_raises_for_another_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bug of the recipe that shows only later, with nothing that is not finite behind it, is one line with its
    place."""
    run = _trained(tmp_path, "stops")
    recipe = RECIPE.format(step="stops").replace(
        "batches=train.batch", "batches=lambda s: train.batch(s)[:, : 2 if s == 11 else 3]"
    )
    (tmp_path / "recipe.py").write_text(recipe)
    code, out, err = _call(capsys, "replay", run)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "raised RuntimeError: mat1 and mat2 shapes" in err
    assert "train.py" in err
