"""Dropout that lets nothing pass."""

from __future__ import annotations

from postmortem.silent.faults.dropout_too_high import DropoutTooHigh
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x = torch.randn(1600, {inputs})
    y = (x[:, :{inputs} // 2].sum(1) > 0).long()


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear({inputs}, {width})
            self.drop = nn.Dropout({p})
            self.head = nn.Linear({width}, 2)

        def forward(self, x):
            return self.head({call})


    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr={lr})
    for epoch in range(2):
        for part in torch.arange(1600).split(40):
            loss = F.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
CALL = "self.drop(torch.relu(self.body(x)))"


def loop(p: float, width: int = 16, call: str = CALL, inputs: int = 8, lr: float = 3e-3) -> str:
    return LOOP.format(p=p, width=width, call=call, inputs=inputs, lr=lr)


@blamed(DropoutTooHigh, at="nn.Dropout(0.95)")
def a_probability_to_keep() -> str:
    return loop(0.95)


@blamed(DropoutTooHigh, at="return self.head")
def of_a_function() -> str:
    return loop(0.1, call="F.dropout(torch.relu(self.body(x)), 0.95, self.training)")


@quiet(DropoutTooHigh)
def the_usual_half() -> str:
    return loop(0.5)


@quiet(DropoutTooHigh)
def many_units_that_learn_nevertheless() -> str:
    return loop(0.8, width=2048, lr=1e-3)


@quiet(DropoutTooHigh)
def a_layer_that_is_never_in_training_mode() -> str:
    return loop(0.9).replace("    optimizer =", "    model.drop.eval()\n    optimizer =")
