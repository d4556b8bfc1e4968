"""Gradients that shrink layer by layer."""

from __future__ import annotations

from postmortem.silent.faults.vanishing_gradient import VanishingGradient
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    layers = [nn.Linear(8, 32), nn.{activation}()]
    for _ in range({depth}):
        layers += [nn.Linear(32, 32), nn.{activation}()]
    model = nn.Sequential(*layers, nn.Linear(32, 1))
    {more}
    optimizer = torch.optim.{optimizer}
    for step in range(20):
        y = torch.randn(64, 1)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(activation: str, depth: int, optimizer: str = "SGD(model.parameters(), lr=0.05)", more: str = "pass") -> str:
    return LOOP.format(activation=activation, depth=depth, optimizer=optimizer, more=more)


@blamed(VanishingGradient, at="layers = ")
def a_deep_sigmoid_network() -> str:
    return loop("Sigmoid", 8)


@quiet(VanishingGradient)
def a_deep_sigmoid_network_with_adam() -> str:
    """Its first layers are updated as well as the others."""
    return loop("Sigmoid", 5, "Adam(model.parameters(), lr=1e-3)")


@quiet(VanishingGradient)
def a_deep_relu_network() -> str:
    return loop("ReLU", 8)


@quiet(VanishingGradient)
def few_layers() -> str:
    return loop("Sigmoid", 2)
