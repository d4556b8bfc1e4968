"""An optimizer over parameters that the model no longer uses."""

from __future__ import annotations

from postmortem.silent.faults.optimizer_stale_parameters import OptimizerStaleParameters
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    {build}
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(OptimizerStaleParameters, at="optimizer = ")
def a_layer_replaced_after_the_optimizer_was_made() -> str:
    build = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); model[2] = nn.Linear(8, 1)"
    return LOOP.format(build=build)


@blamed(OptimizerStaleParameters, at="optimizer = ")
def an_optimizer_of_another_copy() -> str:
    return LOOP.format(
        build="import copy; optimizer = torch.optim.SGD(model.parameters(), lr=0.1); model = copy.deepcopy(model)"
    )


@blamed(OptimizerStaleParameters, at="optimizer = ")
def a_copy_of_a_model_that_has_run() -> str:
    build = "import copy; print(model(x).shape); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    return LOOP.format(build=f"{build}; model = copy.deepcopy(model)")


@quiet(OptimizerStaleParameters)
def a_layer_replaced_before_the_optimizer_is_made() -> str:
    build = "model[2] = nn.Linear(8, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    return LOOP.format(build=build)


@quiet(OptimizerStaleParameters)
def a_layer_that_is_not_used_in_every_step() -> str:
    build = "spare = nn.Linear(3, 3); optimizer = torch.optim.SGD([*model.parameters(), *spare.parameters()], lr=0.1)"
    return LOOP.format(build=build)
