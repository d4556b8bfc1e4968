"""The best state that goes on to change."""

from __future__ import annotations

from postmortem.silent.faults.best_state_aliased import BestStateAliased
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import copy
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best, best_loss = None, float("inf")
    for epoch in range(6):
        for part in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch < 3:
            best_loss = loss.item()
            {keep}
    {use}
"""


def loop(keep: str, use: str) -> str:
    return LOOP.format(keep=keep, use=use)


@blamed(BestStateAliased, at="best = model.state_dict()")
def restored() -> str:
    return loop("best = model.state_dict()", "model.load_state_dict(best)")


@blamed(BestStateAliased, at="model.state_dict().items()")
def another_dict_of_the_same_tensors() -> str:
    return loop("best = {k: v for k, v in model.state_dict().items()}", "model.load_state_dict(best)")


@blamed(BestStateAliased, at="model.state_dict()")
def saved_at_the_end() -> str:
    return loop('best = {"model": model.state_dict(), "epoch": epoch}', 'torch.save(best, "best.pt")')


@quiet(BestStateAliased)
def a_deep_copy() -> str:
    return loop("best = copy.deepcopy(model.state_dict())", "model.load_state_dict(best)")


@quiet(BestStateAliased)
def cloned_in_place() -> str:
    keep = "best = model.state_dict(); best.update({k: v.clone() for k, v in best.items()})"
    return loop(keep, "model.load_state_dict(best)")


@quiet(BestStateAliased)
def saved_at_once() -> str:
    return loop('torch.save(model.state_dict(), "best.pt")', 'model.load_state_dict(torch.load("best.pt"))')


@quiet(BestStateAliased)
def another_model_follows_a_state_that_was_taken_once() -> str:
    program = loop("if epoch % 2: target.load_state_dict(live)", "pass")
    return program.replace(
        "    best, best_loss", "    target, live = copy.deepcopy(model), model.state_dict()\n    best, best_loss"
    )


@blamed(BestStateAliased, at="best = model.state_dict()")
def the_best_state_goes_into_a_copy() -> str:
    program = loop("best = model.state_dict()", "copy.deepcopy(model).load_state_dict(best)")
    return program.replace("if epoch < 3:", "if loss < best_loss:")
