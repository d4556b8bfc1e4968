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


@quiet(InputsCollapsed)
def few_words_beside_a_number_of_batches() -> str:
    """What is divided by an integer does not become an input."""
    batch = "few = (1000 * len(part)) // 128; batches = float(len(part) // 4)\n        "
    return loop(batch + "x = (torch.rand(len(part), 400) < 0.01).float()", 400)


@blamed(InputsCollapsed, at="// 255")
def a_division_in_a_function() -> str:
    scale = "def scaled(images): return (images // 255).float()\n        x = scaled(pixels[part])"
    return loop(scale)


WITHOUT_LAYERS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.rand(240, 12), torch.randn(240, 1)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrices = nn.ParameterList(torch.randn(n, m) / n**0.5 for n, m in ((12, 16), (16, 1)))

        def forward(self, x):
            return torch.tanh(x @ self.matrices[0]) @ self.matrices[1]


    def scaled(x):
        return {scaled}


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(16):
        loss = nn.functional.mse_loss(model(scaled(x[part])), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(InputsCollapsed, at="torch.round(")
def rounded_in_a_model_without_layers() -> str:
    """The parameters are in a list that never runs."""
    return WITHOUT_LAYERS.format(scaled="torch.round((x - x.min()) / (x.max() - x.min()) / 10)")


@quiet(InputsCollapsed)
def scaled_in_a_model_without_layers() -> str:
    return WITHOUT_LAYERS.format(scaled="(x - x.mean(0)) / x.std(0)")


STATES = """
    import torch
    from torch import nn

    torch.manual_seed(0)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.policy, self.value = nn.{body}, nn.Linear(8, 4), nn.Linear(8, 1)

        def forward(self, *given):
            h = self.body(*given)
            return self.policy(h), self.value(h)


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@quiet(InputsCollapsed)
def a_policy_with_one_state() -> str:
    loss = """logits, value = model(torch.ones(16, 5))
        chosen = torch.distributions.Categorical(logits=logits)
        action = chosen.sample()
        reward = (action == 2).float()
        gain = (reward - value.detach().squeeze(1)) * chosen.log_prob(action)
        loss = -gain.mean() + nn.functional.mse_loss(value.squeeze(1), reward)"""
    return STATES.format(body="Linear(5, 8)", loss=loss)


@quiet(InputsCollapsed)
def a_decoder_that_reads_its_state_only() -> str:
    loss = """state = torch.randn(16, 8)
        loss = nn.functional.mse_loss(sum(model(torch.zeros(16, 5), state)), state[:, :1])"""
    return STATES.format(body="GRUCell(5, 8)", loss=loss)
