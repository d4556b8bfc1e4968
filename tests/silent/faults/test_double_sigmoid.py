"""Sigmoid twice."""

from __future__ import annotations

from postmortem.silent.faults.double_sigmoid import DoubleSigmoid
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = (x[:, :1] > 0).float()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1){last})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(8):
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()
"""


def loop(loss: str, last: str = "") -> str:
    return LOOP.format(loss=loss, last=last)


@blamed(DoubleSigmoid, at="loss = ")
def a_sigmoid_before_the_loss_with_logits() -> str:
    return loop("nn.BCEWithLogitsLoss()(model(x[part]), y[part])", ", nn.Sigmoid()")


@blamed(DoubleSigmoid, at="loss = ")
def in_another_shape() -> str:
    return loop(
        "nn.functional.binary_cross_entropy_with_logits(torch.sigmoid(model(x[part])).squeeze(1), y[part].view(-1))"
    )


@blamed(DoubleSigmoid, at="loss = ")
def a_sigmoid_of_a_sigmoid() -> str:
    return loop("nn.functional.binary_cross_entropy(model(x[part]).sigmoid(), y[part])", ", nn.Sigmoid()")


@quiet(DoubleSigmoid)
def probabilities_for_the_loss_that_expects_them() -> str:
    return loop("nn.functional.binary_cross_entropy(model(x[part]), y[part])", ", nn.Sigmoid()")


@quiet(DoubleSigmoid)
def logits_between_0_and_1() -> str:
    """Nothing can be learnt of this target but its mean of 0.6."""
    return loop("nn.BCEWithLogitsLoss()(0.1 * model(x[part]) + 0.4, (torch.rand(8, 1) < 0.6).float())")


@quiet(DoubleSigmoid)
def a_gate_inside_the_model() -> str:
    return loop("nn.BCEWithLogitsLoss()(model(x[part]), y[part])", ", nn.Sigmoid(), nn.Linear(1, 1)")
