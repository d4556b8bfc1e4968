"""A GradScaler that divides what was not multiplied."""

from __future__ import annotations

from postmortem.silent.faults.loss_not_scaled import LossNotScaled
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled={enabled})
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        {backward}
        scaler.step(optimizer)
        scaler.update()
"""


def loop(*backward: str, enabled: bool = True) -> str:
    return LOOP.format(backward=("\n" + " " * 8).join(backward), enabled=enabled)


@blamed(LossNotScaled, at="loss.backward()")
def the_scaled_loss_is_dropped() -> str:
    return loop("scaler.scale(loss)", "loss.backward()")


@quiet(LossNotScaled)
def scaled() -> str:
    return loop("scaler.scale(loss).backward()")


@quiet(LossNotScaled)
def a_penalty_is_added_to_the_scaled_loss() -> str:
    return loop(
        "scaled = scaler.scale(loss)", "(scaled + scaler.scale(1e-4 * model[0].weight.square().sum())).backward()"
    )


@quiet(LossNotScaled, status="not checked")
def disabled() -> str:
    return loop("scaler.scale(loss)", "loss.backward()", enabled=False)
