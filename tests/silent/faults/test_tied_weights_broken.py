"""Ties that are lost."""

from __future__ import annotations

from postmortem.silent.faults.tied_weights_broken import TiedWeightsBroken
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import copy
    import torch
    from torch import nn

    torch.manual_seed(0)
    ids = torch.randint(0, 12, (8, 6))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body = nn.Embedding(12, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 12, bias=False)
            {tie}

        def forward(self, ids):
            return self.head(torch.tanh(self.body(self.table(ids))))


    model = Net()
    {change}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(*change: str, tie: str = "self.head.weight = self.table.weight") -> str:
    return LOOP.format(change=("\n" + " " * 4).join(change or ("pass",)), tie=tie)


@blamed(TiedWeightsBroken, at="model.head.weight = nn.Parameter")
def a_new_parameter() -> str:
    return loop("model.head.weight = nn.Parameter(model.head.weight.detach().clone())")


@blamed(TiedWeightsBroken, at="model.head = nn.Linear")
def a_new_head() -> str:
    return loop("model.head = nn.Linear(16, 12, bias=False)")


@blamed(TiedWeightsBroken, at="assign=True")
def loaded_by_assignment() -> str:
    return loop("model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)")


@quiet(TiedWeightsBroken)
def tied() -> str:
    return loop()


@quiet(TiedWeightsBroken)
def tied_in_a_copy() -> str:
    return loop("model = copy.deepcopy(model)", "model.load_state_dict(Net().state_dict())", "model.double().float()")


@quiet(TiedWeightsBroken, status="not checked")
def never_tied() -> str:
    return loop(tie="pass")


@quiet(TiedWeightsBroken)
def a_smaller_head() -> str:
    return loop("model.head = nn.Linear(16, 20, bias=False)")
