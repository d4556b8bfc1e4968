"""Inputs without content."""

from __future__ import annotations

from postmortem.silent.faults.inputs_collapsed import InputsCollapsed
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (240, 1, 6, 6)).to(torch.uint8)
    y = torch.randint(0, 3, (240,))
    model = nn.Sequential(nn.Flatten(), nn.Linear({width}, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(16):
        {batch}
        loss = nn.functional.cross_entropy(model(x), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(batch: str, width: int = 36) -> str:
    return LOOP.format(batch=batch, width=width)


@blamed(InputsCollapsed, at="// 255")
def an_integer_division() -> str:
    return loop("x = (pixels[part] // 255).float()")


@blamed(InputsCollapsed, at=".to(torch.uint8)")
def a_cast_after_the_division() -> str:
    return loop("x = (pixels[part].float() / 300).to(torch.uint8).float()")


@blamed(InputsCollapsed, at="model(x)")
def nothing_but_zeros() -> str:
    return loop("x = torch.zeros(len(part), 36)")


@quiet(InputsCollapsed)
def scaled_pixels() -> str:
    return loop("x = pixels[part].float() / 255")


@quiet(InputsCollapsed)
def counts_of_few_words() -> str:
    return loop("x = (torch.rand(len(part), 400) < 0.01).float()", 400)


@quiet(InputsCollapsed)
def one_state_of_many() -> str:
    return loop("x = torch.eye(100)[torch.randint(0, 100 // 2, (len(part),))]", 100)


@blamed(InputsCollapsed, at="z = v - v.mean(")
def a_mean_over_one_channel() -> str:
    return loop("v = torch.rand(len(part), 36, 1)\n        z = v - v.mean(-1, keepdim=True)\n        x = z")
