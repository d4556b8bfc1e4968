"""Modules in a plain list."""

from __future__ import annotations

from postmortem.silent.faults.unregistered_submodules import UnregisteredSubmodules
from tests.silent.faults.cases import blamed, quiet

NET = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            {build}

        def forward(self, x):
            return {run}


    net = Net()
    {before}
    optimizer = torch.optim.{optimizer}
    for step in range(12):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
HEAD = "self.head = nn.Linear(8, 1)"


def net(build: str, run: str, before: str = "", optimizer: str = "SGD(net.parameters(), lr=0.1)") -> str:
    return NET.format(build=f"{build}; {HEAD}", run=run, before=before, optimizer=optimizer)


@blamed(UnregisteredSubmodules, at="self.layers = ")
def layers_in_a_list() -> str:
    return net("self.layers = [nn.Linear(4, 8), nn.ReLU()]", "self.head(self.layers[1](self.layers[0](x)))")


@blamed(UnregisteredSubmodules, at="self.parts = ")
def a_layer_in_a_dict() -> str:
    return net("self.parts = dict(body=nn.Sequential(nn.Linear(4, 8), nn.Tanh()))", 'self.head(self.parts["body"](x))')


@blamed(UnregisteredSubmodules, at="self.weights = ")
def parameters_in_a_list() -> str:
    return net("self.weights = [nn.Parameter(torch.randn(4, 8))]", "self.head(x @ self.weights[0])")


@quiet(UnregisteredSubmodules)
def a_list_of_registered_parameters() -> str:
    build = "self.weight = nn.Parameter(torch.randn(4, 8)); self.all = [self.weight]"
    return net(build, "self.head(x @ self.weight)")


@quiet(UnregisteredSubmodules)
def layers_in_a_module_list() -> str:
    return net("self.layers = nn.ModuleList([nn.Linear(4, 8)])", "self.head(self.layers[0](x))")


@quiet(UnregisteredSubmodules)
def a_frozen_network_that_is_hidden() -> str:
    """Kept in a list so that it is neither trained nor saved."""
    build = "self.hidden = [nn.Linear(4, 8).eval()]"
    return net(build, "self.head(self.hidden[0](x))", "net.hidden[0].requires_grad_(False)")


@quiet(UnregisteredSubmodules)
def a_list_whose_parameters_the_optimizer_got() -> str:
    optimizer = "SGD([*net.parameters(), *net.layers[0].parameters()], lr=0.1)"
    return net("self.layers = [nn.Linear(4, 8)]", "self.head(self.layers[0](x))", optimizer=optimizer)
