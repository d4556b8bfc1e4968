"""An optimizer that can change nothing."""

from __future__ import annotations

from postmortem.silent.faults.frozen_parameters_in_optimizer import FrozenParametersInOptimizer
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    {build}
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(FrozenParametersInOptimizer, at="optimizer = ")
def the_new_layer_is_frozen() -> str:
    build = "model[2].requires_grad_(False); optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)"
    return LOOP.format(build=build).replace("nn.Tanh()", "nn.LayerNorm(8)").replace("model[2]", "model[0]")


@quiet(FrozenParametersInOptimizer)
def some_parameters_are_frozen() -> str:
    return LOOP.format(build="model[0].requires_grad_(False); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")


@quiet(FrozenParametersInOptimizer)
def gradients_that_the_program_estimates() -> str:
    """Without a backward pass."""
    return """
        import torch

        torch.manual_seed(0)
        x, y = torch.randn(64, 4), torch.randn(64, 1)
        model = torch.nn.Linear(4, 1).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(12):
            for p in model.parameters():
                p.grad = torch.randn_like(p) * torch.nn.functional.mse_loss(model(x), y)
            optimizer.step()
    """
