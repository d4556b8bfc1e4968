"""Weights that decay to nothing."""

from __future__ import annotations

from postmortem.silent.faults.weight_decay_too_high import WeightDecayTooHigh
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.{optimizer}
    for step in range({steps}):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(optimizer: str, steps: int = 120) -> str:
    return LOOP.format(optimizer=optimizer, steps=steps)


@blamed(WeightDecayTooHigh, at="optimizer =")
def with_adam() -> str:
    return loop("Adam(model.parameters(), lr=5e-3, weight_decay=3.0)")


@blamed(WeightDecayTooHigh, at="optimizer =")
def with_sgd() -> str:
    return loop("SGD(model.parameters(), lr=0.1, weight_decay=1.0)")


@blamed(WeightDecayTooHigh, at="optimizer =")
def decoupled() -> str:
    return loop("AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)")


@quiet(WeightDecayTooHigh)
def a_usual_decay() -> str:
    return loop("AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)")


@quiet(WeightDecayTooHigh)
def a_strong_decay_that_learns() -> str:
    return loop("SGD(model.parameters(), lr=0.5, weight_decay=0.02)")


@quiet(WeightDecayTooHigh)
def noise_with_decay() -> str:
    return loop("Adam(model.parameters(), lr=1e-3, weight_decay=1e-2)").replace(
        "(x[:, 0] > 0)", "(torch.rand(240) > 0.5)"
    )
