"""nll_loss of what is no logarithm."""

from __future__ import annotations

from postmortem.silent.faults.nll_without_log import NllWithoutLog
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(8):
        optimizer.zero_grad()
        out = model(x[part])
        {body}
        loss.backward()
        optimizer.step()
"""


def loop(*body: str) -> str:
    return LOOP.format(body=("\n" + " " * 8).join(body))


@blamed(NllWithoutLog, at="loss = ")
def probabilities() -> str:
    return loop("loss = F.nll_loss(F.softmax(out, 1), y[part])")


@blamed(NllWithoutLog, at="loss = ")
def logits() -> str:
    return loop("loss = nn.NLLLoss()(out, y[part])")


@blamed(NllWithoutLog, at="loss = ")
def probabilities_for_a_divergence() -> str:
    return loop(
        "goal = F.one_hot(y[part], 3) * 0.7 + 0.1", 'loss = F.kl_div(out.softmax(1), goal, reduction="batchmean")'
    )


@quiet(NllWithoutLog)
def logarithms() -> str:
    return loop("loss = F.nll_loss(F.log_softmax(out, 1), y[part])")


@quiet(NllWithoutLog)
def a_focal_loss() -> str:
    """Weighted log-probabilities do not sum to 1, but they are not positive."""
    return loop("logs = out.log_softmax(1)", "loss = F.nll_loss((1 - logs.exp()) ** 2 * logs, y[part])")


@quiet(NllWithoutLog)
def a_divergence_of_logarithms() -> str:
    return loop(
        "goal = F.one_hot(y[part], 3) * 0.7 + 0.1", 'loss = F.kl_div(out.log_softmax(1), goal, reduction="batchmean")'
    )
