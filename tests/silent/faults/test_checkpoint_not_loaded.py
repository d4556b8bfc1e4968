"""Weights that are not loaded."""

from __future__ import annotations

from postmortem.silent.faults.checkpoint_not_loaded import CheckpointNotLoaded
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randn(64, 1)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)))


    torch.save({{"module." + k: v for k, v in Net().state_dict().items()}}, "first.pt")
    model = Net()
    state = torch.load("first.pt")
    {load}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(*load: str) -> str:
    return LOOP.format(load=("\n" + " " * 4).join(load))


@blamed(CheckpointNotLoaded, at="strict=False")
def a_prefix() -> str:
    return loop("model.load_state_dict(state, strict=False)")


@blamed(CheckpointNotLoaded, at="model.load_state_dict(own)")
def nothing_was_taken_over() -> str:
    return loop(
        "own = model.state_dict()",
        "own.update({k: v for k, v in state.items() if k in own})",
        "model.load_state_dict(own)",
    )


@quiet(CheckpointNotLoaded)
def the_prefix_is_removed() -> str:
    return loop("model.load_state_dict({k.removeprefix('module.'): v for k, v in state.items()}, strict=False)")


@quiet(CheckpointNotLoaded)
def only_the_body() -> str:
    return loop("model.load_state_dict({k[7:]: v for k, v in state.items() if 'body' in k}, strict=False)")


@quiet(CheckpointNotLoaded)
def a_second_try() -> str:
    return loop(
        "missing = model.load_state_dict(state, strict=False).missing_keys",
        "if missing: model.load_state_dict({k[7:]: v for k, v in state.items()})",
    )


@quiet(CheckpointNotLoaded)
def values_are_copied_into_the_own_state() -> str:
    return loop(
        "own = model.state_dict()",
        "for name, value in state.items():",
        "    own[name.removeprefix('module.')].copy_(value)",
        "model.load_state_dict(own)",
    )
