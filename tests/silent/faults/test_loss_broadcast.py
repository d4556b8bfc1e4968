"""Shapes that broadcast in the loss."""

from __future__ import annotations

from postmortem.silent.faults.loss_broadcast import LossBroadcast
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x = torch.randn(236, 4)
    y = x[:, 0] * 2
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, {out}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(236).split(8):
        optimizer.zero_grad()
        pred = model(x[part])
        loss = {loss}
        loss.backward()
        optimizer.step()
"""


def loop(loss: str, out: int = 1) -> str:
    return LOOP.format(loss=loss, out=out)


@blamed(LossBroadcast, at="loss = ")
def a_column_against_a_row() -> str:
    return loop("F.mse_loss(pred, y[part])")


@blamed(LossBroadcast, at="loss = ")
def a_row_against_a_column() -> str:
    return loop("nn.SmoothL1Loss()(pred.squeeze(1), y[part].unsqueeze(1))")


@blamed(LossBroadcast, at="loss = ")
def a_difference_of_ones_own() -> str:
    return loop("((y[part] - pred) ** 2).mean()")


@blamed(LossBroadcast, at="loss = ")
def an_absolute_difference() -> str:
    return loop("(pred - y[part]).abs().mean()")


@blamed(LossBroadcast, at="loss = ")
def a_term_with_a_squeezed_prediction() -> str:
    """As of an actor-critic: values [B] against returns [B, 1], beside an entropy."""
    return loop("pred.abs().mean() * 0.1 + 0.5 * (y[part].unsqueeze(1) - pred.squeeze(-1)).pow(2).mean()")


@quiet(LossBroadcast)
def equal_shapes() -> str:
    return loop("F.mse_loss(pred.squeeze(1), y[part]) + (pred.view(-1) - y[part]).abs().mean()")


@quiet(LossBroadcast)
def all_pairs() -> str:
    """On purpose: both have two dimensions."""
    return loop("F.smooth_l1_loss(pred, y[part].unsqueeze(0)) + (pred - pred.T - 1).square().mean()")


@quiet(LossBroadcast)
def one_goal_for_all() -> str:
    return loop("F.mse_loss(pred, torch.tensor([1.0, 2.0])) + F.mse_loss(pred, torch.tensor(0.5))", 2)


@quiet(LossBroadcast)
def a_grid_of_another_length() -> str:
    return loop("(pred - torch.linspace(0, 1, 5)).square().mean()")


LIKELIHOOD = "(0.5 * ((y[part]{shape} - pred[:, :1]) / pred[:, 1:].exp()) ** 2 + pred[:, 1:]).mean()"


@blamed(LossBroadcast, at="loss = ")
def a_likelihood_of_ones_own() -> str:
    return loop(LIKELIHOOD.format(shape=""), 2)


@quiet(LossBroadcast, status="not checked")
def a_likelihood_of_equal_shapes() -> str:
    return loop(LIKELIHOOD.format(shape="[:, None]"), 2)


@quiet(LossBroadcast, status="not checked")
def all_pairs_on_purpose() -> str:
    """A prediction is made a column, to be compared with all others."""
    return loop("(1 - (pred.squeeze(1).unsqueeze(1) - pred.detach().squeeze(1)) * 0.1).clamp(min=0).mean()")
