"""The stand-alone script: the operator at fault, called on what it was given, with torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.repro import write_repro  # noqa: E402
from postmortem.replay.rerun.determinism import Fault  # noqa: E402
from postmortem.replay.roll import roll as rolling  # noqa: E402
from postmortem.replay.step.runner import StepRunner  # noqa: E402
from tests import warm  # noqa: E402

pytestmark = pytest.mark.torch


def _written(folder: Path, step: Any, batch: Any, model: Any = None, optimizer: Any = None) -> tuple[str, str]:
    """The phase that is found, and what the script then prints."""
    torch.manual_seed(0)
    model = model or nn.Linear(4, 4, bias=False)
    train_step = TrainStep(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.01), step, batch)
    runner = StepRunner(train_step)
    done = rolling.roll(runner, 0, 0)
    culprit = localize(train_step, runner=runner, rolled=Fault(done), fixes=False)
    said = write_repro(folder, runner, done, culprit)
    assert "that reproduces the failure" in said, said
    return culprit.phase, warm.run(str(folder / "repro.py")).stdout


@pytest.mark.parametrize("options", [{}, {"foreach": True}], ids=["plain", "foreach"])
def test_an_operator_in_the_optimizer(tmp_path: Path, options: dict[str, bool]) -> None:
    """0 / 0 in Adam's update: its operator, on the state and the gradient that it had."""
    model = nn.Embedding(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, **options)
    phase, said = _written(tmp_path, lambda m, b: m(b).mean(), torch.tensor([0, 1]), model, optimizer)
    assert phase == "optimizer"
    assert said.startswith("reproduced: non-finite values")


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g / (g - g).norm()


def test_an_operator_in_the_users_own_backward(tmp_path: Path) -> None:
    """What a custom Function divides in its backward is called as it stood there."""
    phase, said = _written(tmp_path, lambda m, b: _Unit.apply(m(b)).sum(), torch.ones(3, 4))
    assert phase == "backward"
    assert said.startswith("reproduced: non-finite values")


def test_an_operator_that_makes_nan_of_infinities(tmp_path: Path) -> None:
    """A softmax of a row that is masked altogether: the -inf that it reads is no fault, the NaN that it makes is."""
    mask = torch.zeros(3, 4)
    mask[1] = float("-inf")
    phase, said = _written(tmp_path, lambda m, b: (m(b) + mask).softmax(-1).pow(2).sum(), torch.ones(3, 4))
    assert phase == "forward"
    assert "12 values" not in said
    assert "4 non-finite values, the first at index [1, 0]" in said


def test_a_derivative_of_several_outputs(tmp_path: Path) -> None:
    """eigh of a matrix with equal eigenvalues: the eigenvectors have no derivative."""

    def step(m: Any, b: Any) -> Any:
        return torch.linalg.eigh(m.weight @ m.weight.T)[1][0].sum()

    model = nn.Linear(4, 4, bias=False)
    nn.init.eye_(model.weight)
    phase, said = _written(tmp_path, step, torch.ones(3, 4), model)
    assert phase == "backward"
    assert said.startswith("reproduced: non-finite values")


class _Rescale(nn.Module):
    """Keeps the scale of the next step in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = nn.Linear(3, 2), torch.ones(3)

    def forward(self, x: Any) -> Any:
        y = self.lin(x * self.scale)
        self.scale = 1 / x.std(0)
        return y


def test_an_operator_of_an_earlier_step(tmp_path: Path) -> None:
    """What an earlier step left behind is shown by that step's call, and the script says which step it was."""
    torch.manual_seed(0)
    model = _Rescale()
    batches = [torch.randn(4, 3) for _ in range(5)]
    batches[2][:, 1] = 0.5
    train_step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, b: m(b).pow(2).mean(), batches=batches
    )
    runner = StepRunner(train_step)
    done = rolling.roll(runner, 0, 4)
    culprit = localize(train_step, runner=runner, rolled=Fault(done), fixes=False)
    assert (culprit.step, culprit.code) == (3, "self.scale = 1 / x.std(0)")
    assert "that reproduces the failure" in write_repro(tmp_path, runner, done, culprit)
    assert "pass of step 2" in (tmp_path / "repro.py").read_text(encoding="utf-8")
