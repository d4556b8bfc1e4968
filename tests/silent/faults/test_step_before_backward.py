"""The step of the batch before."""

from __future__ import annotations

from postmortem.silent.faults.step_before_backward import StepBeforeBackward
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randn(240, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, part in enumerate(torch.arange(240).split(8)):
        {body}
"""
LOSS = "loss = nn.functional.mse_loss(model(x[part]), y[part])"


def loop(*body: str) -> str:
    return LOOP.format(body=("\n" + " " * 8).join(body))


@blamed(StepBeforeBackward, at="optimizer.step()")
def the_step_comes_first() -> str:
    return loop("optimizer.zero_grad()", LOSS, "optimizer.step()", "loss.backward()")


@quiet(StepBeforeBackward)
def the_loop_begins_with_the_step() -> str:
    """Of the batch before, on purpose: each backward pass is of a forward pass after the step."""
    return loop("optimizer.step()", "optimizer.zero_grad()", LOSS, "loss.backward()")


@quiet(StepBeforeBackward)
def two_losses_in_turn() -> str:
    return loop(
        "optimizer.zero_grad()",
        LOSS,
        "loss.backward()",
        "nn.functional.l1_loss(model(x[part]), y[part]).backward()",
        "optimizer.step()",
    )
