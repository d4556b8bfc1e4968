"""A last activation that the targets do not fit."""

from __future__ import annotations

from postmortem.silent.faults.relu_before_loss import ReluBeforeLoss
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = {target}
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, {out}), {last})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(8):
        optimizer.zero_grad()
        pred = model(x[part])
        loss = {loss}
        loss.backward()
        optimizer.step()
"""


def loop(last: str, target: str, loss: str = "F.mse_loss(pred, y[part])", out: int = 1) -> str:
    return LOOP.format(last=last, target=target, loss=loss, out=out)


@blamed(ReluBeforeLoss, at="loss = ")
def targets_below_zero() -> str:
    return loop("nn.ReLU()", "x[:, :1] * 2")


@blamed(ReluBeforeLoss, at="loss = ")
def targets_above_one() -> str:
    return loop("nn.Sigmoid()", "x[:, :1].abs() * 3", "nn.L1Loss()(pred, y[part])")


@blamed(ReluBeforeLoss, at="loss = ")
def a_difference_of_ones_own() -> str:
    return loop("nn.ReLU()", "x[:, :1] * 2", "((pred - y[part]) ** 2).mean()")


@blamed(ReluBeforeLoss, at="loss = ")
def a_term_of_the_loss() -> str:
    """As of an autoencoder: the squares of a sample are summed, and another term is added."""
    loss = "(pred - x[part]).pow(2).sum(1).mean() + 0.1 * model[0].weight.pow(2).sum()"
    return loop("nn.Sigmoid()", "x", loss, 4)


@blamed(ReluBeforeLoss, at="loss = ")
def a_sigmoid_before_cross_entropy() -> str:
    return loop("nn.Sigmoid()", "(x[:, 0] > 0).long() + (x[:, 1] > 0).long()", "F.cross_entropy(pred, y[part])", 3)


@blamed(ReluBeforeLoss, at="loss = ")
def logits_that_are_not_negative() -> str:
    loss = "F.binary_cross_entropy_with_logits(pred, y[part])"
    return loop("nn.ReLU()", "(x[:, :1] > 0).float()", loss)


@blamed(ReluBeforeLoss, at="loss = ")
def targets_beyond_a_scaled_tanh() -> str:
    return loop("nn.Tanh()", "x[:, :1] * 8", "F.mse_loss(2 * pred, y[part])")


@quiet(ReluBeforeLoss)
def targets_that_a_scaled_tanh_reaches() -> str:
    return loop("nn.Tanh()", "x[:, :1].clamp(-2, 2)", "F.mse_loss(pred * 2.5, y[part])")


@quiet(ReluBeforeLoss)
def targets_that_are_not_negative() -> str:
    """But for the noise of a few."""
    return loop("nn.ReLU()", "(x[:, :1] * 2).abs() + 0.5 + 0.1 * torch.randn(240, 1)")


@quiet(ReluBeforeLoss)
def targets_between_0_and_1() -> str:
    return loop("nn.Sigmoid()", "torch.rand(240, 1)")


@quiet(ReluBeforeLoss)
def a_scaled_tanh() -> str:
    loss = "F.cross_entropy(20 * pred, y[part]) + (3 * pred[:, :1] - x[part][:, :1]).square().mean()"
    return loop("nn.Tanh()", "(x[:, 0] > 0).long() + (x[:, 1] > 0).long()", loss, 3)


@quiet(ReluBeforeLoss)
def a_relu_before_cross_entropy() -> str:
    """Any difference of logits can be reached."""
    return loop("nn.ReLU()", "(x[:, 0] > 0).long() + (x[:, 1] > 0).long()", "F.cross_entropy(pred, y[part])", 3)


@blamed(ReluBeforeLoss, at="loss = ")
def a_difference_in_another_shape() -> str:
    return loop("nn.ReLU()", "x[:, 0] * 2", "torch.mean((pred.squeeze(-1) - y[part]) ** 2)")
