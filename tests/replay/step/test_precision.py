"""Reruns in another precision of steps whose code names one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from postmortem.replay.culprit.localize import localize  # noqa: E402
from postmortem.replay.model import TrainStep  # noqa: E402
from postmortem.replay.step.precision import CastsFollow  # noqa: E402

pytestmark = pytest.mark.torch


class Energy(nn.Module):
    """Squares in half precision, whatever the rest is computed in."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.scale = way, nn.Parameter(torch.tensor(300.0))
        self.out = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        if self.way == "half":
            h = (x * self.scale).half().pow(2)
            return self.out(h.float())
        if self.way == "to":
            h = (x * self.scale).to(dtype=torch.float16).pow(2)
            return self.out(h.to(torch.float32))
        if self.way == "recomputed":
            return checkpoint(lambda t: self.out((t * self.scale).half().pow(2).float()), x, use_reentrant=False)
        if self.way == "type":
            return self.out((x * self.scale).type(torch.float16).pow(2).type(torch.float32))
        if self.way == "made":
            h = torch.zeros(x.shape, dtype=torch.float16, device=x.device).add((x * self.scale).half()).pow(2)
            return self.out(h.float())
        raise ValueError(self.way)


def _built(model: Any, loss: Any = None) -> TrainStep:
    batch = {
        "x": torch.tensor([[0.1, 0.2, 0.1, 0.3], [0.2, 1.0, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1]]),
        "y": torch.zeros(3, 1),
    }
    step = loss or (lambda m, b: F.mse_loss(1e-4 * m(b["x"]), b["y"]))
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-9), step, batch)


@pytest.mark.parametrize("way", ["half", "to", "type", "made", "recomputed"])
def test_casts_in_the_code_follow_the_precision(way: str) -> None:
    """An overflow in half precision that the code asks for is gone in double precision, although the plain rerun does
    not run."""
    torch.manual_seed(0)
    found = localize(_built(Energy(way)))
    assert (found.phase, found.op, found.cause, found.samples) == ("forward", "pow", "dtype-overflow", (1,))
    assert found.precision_only is True
    assert {f.name for f in found.fixes if f.cured} >= {"fp64", "drop_sample"}
    assert any("the casts in the code" in f.how for f in found.fixes if f.name == "fp64")


def test_a_large_value_that_single_precision_holds_is_no_fault_of_the_data() -> None:
    """Under autocast to half precision the operator overflows: it and its module are named beside the sample."""
    torch.manual_seed(0)
    x = torch.rand(4, 3)
    x[2, 1] = 1e5
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
    model.forward = torch.autocast("cpu", torch.float16)(model.forward)  # type: ignore[method-assign]
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-9), lambda m, b: m(b).float().mean(), x)
    found = localize(step)
    assert (found.phase, found.cause, found.module, found.samples) == ("forward", "dtype-overflow", "0", (2,))


class Bank:
    """Features of earlier steps, held by the step and by no module."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []


class Queued(nn.Module):
    """Divides by the norm of what an earlier batch left in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, bias=False)
        self.rows: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
        z = self.fc(x)
        bank = torch.stack([r.clone() for r in rows[-2:]]) if rows else z.detach()
        rows.append(z.detach().mean(0))
        return (z @ bank.t() / bank.norm(dim=1)).mean(1)


@pytest.mark.parametrize("holder", ["module", "object"])
def test_tensors_in_containers_follow_the_precision(holder: str) -> None:
    """A queue that earlier steps filled does not stand in the way of the rerun in double precision, and is put back."""
    torch.manual_seed(0)
    model, bank = Queued(), Bank()
    rows = model.rows if holder == "module" else bank.rows
    batches = [{"x": torch.randn(4, 4), "y": torch.randn(4)} for _ in range(4)]
    batches[1]["x"].zero_()

    def step(m: Any, b: Any) -> torch.Tensor:
        return F.mse_loss(m(b["x"], m.rows if holder == "module" else bank.rows), b["y"])

    found = localize(TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step, batches=batches))
    assert (found.phase, found.op, found.step, found.samples) == ("forward", "div", 2, None)
    assert found.precision_only is False
    assert rows == []
    assert (model.rows if holder == "module" else bank.rows) is rows


def test_casts_are_left_alone_where_double_precision_runs() -> None:
    """The rerun keeps what the code says where it can; that the casts are to blame is told, and claimed as no fix."""
    torch.manual_seed(0)
    model = Energy("half")
    model.out = nn.Identity()
    found = localize(_built(model))
    assert found.precision_only is False
    assert "fp64" not in {f.name for f in found.fixes if f.cured}
    assert any("without these casts it does not" in line for line in found.how)


def test_quantisation_that_is_meant() -> None:
    """Rounding to eight bits is no precision of the step: it stays, and so does the fault behind it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def step(m: Any, b: Any) -> Any:
        small = (b["x"] * 1e-4).to(torch.float8_e4m3fn).float()  # rounds to zero
        return m((small / small).to(torch.float32)).mean()

    found = localize(_built(model, step))
    assert (found.op, found.precision_only) == ("div", False)


def test_the_mode_leaves_nothing_behind() -> None:
    """Outside it, casts and factories do what they say again."""
    with CastsFollow(torch.float64):
        assert torch.ones(2).half().dtype == torch.float64
        assert torch.ones(2, dtype=torch.float32).to(torch.bfloat16).dtype == torch.float64
        assert torch.ones(2).to(torch.float8_e5m2).dtype == torch.float8_e5m2
        assert torch.ones(2).to(torch.int32).dtype == torch.int32
    assert torch.ones(2).half().dtype == torch.float16
    with CastsFollow(torch.bfloat16):
        assert torch.ones(2).half().dtype == torch.bfloat16
        assert torch.ones(2).double().float().dtype == torch.float32
