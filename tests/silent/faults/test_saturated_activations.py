"""Activations at their bounds."""

from __future__ import annotations

from postmortem.silent.faults.saturated_activations import SaturatedActivations
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(8, 32), nn.{activation}(), nn.Linear(32, 32), nn.{activation}(), nn.Linear(32, 1))
    {initialise}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(20):
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(*initialise: str, activation: str = "Tanh", loss: str = "nn.functional.mse_loss(model(x), y)") -> str:
    return LOOP.format(initialise=("\n" + " " * 4).join(initialise or ("pass",)), activation=activation, loss=loss)


@blamed(SaturatedActivations, at="normal_")
def large_weights() -> str:
    return loop("for layer in (model[0], model[2]):", "    nn.init.normal_(layer.weight, std=4.0)")


@blamed(SaturatedActivations, at="uniform_")
def a_sigmoid_with_large_weights() -> str:
    return loop("model[2].weight.data.uniform_(-20, 20)", activation="Sigmoid")


@quiet(SaturatedActivations)
def usual_weights() -> str:
    return loop()


@quiet(SaturatedActivations)
def a_sure_last_layer() -> str:
    return loop(
        "model.append(nn.Tanh())",
        "model[4].weight.data.mul_(50)",
        "model[4].bias.data.add_(9)",
        loss="(model(x) - y.sign()).square().mean()",
    )


@quiet(SaturatedActivations)
def orthogonal_weights() -> str:
    return loop("nn.init.orthogonal_(model[0].weight, gain=1.7)")
