"""`postmortem layout` with real processes and DDP's own warnings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from postmortem.cli.layout import layout
from tests.cases import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")]

GAN = """
import pathlib, torch
from torch import nn
torch.manual_seed(0)

class Taps(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 1, 4))

    def forward(self, h):
        k = self.w.permute(1, 0, 2).squeeze(0)
        return torch.einsum("bi,io->bo", h, k)

G1, G2, D = nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 8), Taps()), nn.Linear(4, 1)
opt_g = torch.optim.SGD([*G1.parameters(), *G2.parameters()], lr=1e-3)
opt_d = torch.optim.SGD(D.parameters(), lr=1e-3)
while True:
    z = torch.randn(6, 3)
    opt_d.zero_grad()
    (D(G1(z).detach()).mean() - D(torch.randn(6, 4)).mean()).backward()
    opt_d.step()
    opt_g.zero_grad()
    (-D(G1(z)).mean() - D(G2(z)).mean()).backward()
    opt_g.step()
    pathlib.Path("steps").open("a").write("x")
"""


def called(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "postmortem", "layout", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_a_gradient_of_the_second_generator_is_named_and_cured(tmp_path: Path) -> None:
    """Parameter, line and backward pass are named; the fixes take DDP's own warnings, two of each iteration, away."""
    (tmp_path / "train.py").write_text(GAN)
    done = called(tmp_path, "--iterations", "2", "--format", "json", "--", sys.executable, "train.py")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    (found,) = answer["gradients"]
    assert (found["name"], found["line"], found["op"], found["difference"]) == ("G2.1.w", 12, "permute", "size-1")
    assert (found["strides"], found["expected"], found["ranks"]) == ([4, 32, 1], [4, 4, 1], 2)
    assert [(p["line"], p["first"]) for p in found["phases"]] == [(24, 0)]
    assert answer["warnings"] == 2 * answer["ranks"] == 4
    tried = {t["fix"]: (t["cures"], t["warnings"]["after"]) for t in answer["tried"]}
    assert tried["view"] == tried["gradient-hook"] == tried["parameter-layout"] == (True, 0)
    assert tried["no-bucket-view"] == (False, 4)
    assert list(tried)[-1] == "no-bucket-view"
    assert "+        k = self.w.view(1, 8, 4).squeeze(0)" in answer["tried"][0]["change"]
    assert answer["notes"] == []
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_healthy_steps_of_a_recipe(tmp_path: Path) -> None:
    """Weights that are transposed for a product have gradients of their own strides: exit code 0."""
    (tmp_path / "recipe.py").write_text(
        "import torch, postmortem\n"
        "def recipe(ctx):\n"
        "    w = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4, 3))])\n"
        "    def loss(model, batch):\n"
        "        return (batch @ model[0].t()).square().mean()\n"
        "    step = torch.optim.SGD(w.parameters(), lr=0.1)\n"
        "    return postmortem.TrainStep(w, step, loss, batches=[torch.ones(2, 3)] * 3)\n"
    )
    done = called(tmp_path, "--recipe", "recipe.py", "--ranks", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 of 1 gradient in 3 iterations have strides that differ from their parameter's")


def test_it_is_told_what_to_run() -> None:
    """A command or a recipe, not both and not none: exit code 2, one line."""
    for args in ([], ["--recipe", "recipe.py", "--", "python", "train.py"]):
        done = CliRunner().invoke(layout, args)
        assert done.exit_code == 2
        assert "give a COMMAND after --, or --recipe FILE.py" in done.output
