"""Parameters that no optimizer holds."""

from __future__ import annotations

from postmortem.silent.faults.parameters_missing_from_optimizer import ParametersMissingFromOptimizer
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


@blamed(ParametersMissingFromOptimizer, at="optimizer = ")
def an_optimizer_of_the_last_layer_only() -> str:
    return LOOP.format(build="optimizer = torch.optim.Adam(model[2].parameters())")


@quiet(ParametersMissingFromOptimizer)
def a_frozen_backbone() -> str:
    return LOOP.format(build="model[0].requires_grad_(False); optimizer = torch.optim.Adam(model[2].parameters())")


@quiet(ParametersMissingFromOptimizer)
def two_optimizers() -> str:
    """Each step of one clears and uses what is its own."""
    return LOOP.format(
        build="optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1); "
        "other = torch.optim.SGD(model[0].parameters(), lr=0.1); "
        "optimizer.register_step_post_hook(lambda *_: (other.step(), other.zero_grad()))"
    )


@quiet(ParametersMissingFromOptimizer)
def weights_that_the_program_updates_itself() -> str:
    return """
        import torch

        torch.manual_seed(0)
        x, y = torch.randn(64, 4), torch.randn(64, 1)
        model, scale = torch.nn.Linear(4, 1), torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            loss = torch.nn.functional.mse_loss(model(x) * scale, y)
            optimizer.zero_grad()
            scale.grad = None
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                scale -= 0.1 * scale.grad
    """


@quiet(ParametersMissingFromOptimizer)
def inputs_whose_gradient_is_taken() -> str:
    return LOOP.format(build="x.requires_grad_(True); optimizer = torch.optim.Adam(model.parameters())")


GROUPS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 1, 4), torch.randn(64, 1)


    def groups(model):
        many, one = [], []
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.ndim == 1:
                one.append(parameter)
            {branch}
                many.append(parameter)
        return [{{"params": many}}, {{"params": one, "weight_decay": 0.0}}]


    model = nn.Sequential(nn.Conv1d(1, 3, 1), nn.Flatten(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(ParametersMissingFromOptimizer, at="elif parameter.ndim == 2")
def groups_that_leave_convolutions_out() -> str:
    return GROUPS.format(branch="elif parameter.ndim == 2:")


@quiet(ParametersMissingFromOptimizer)
def groups_of_all_parameters() -> str:
    return GROUPS.format(branch="else:")


@blamed(ParametersMissingFromOptimizer, at="biases = ")
def a_list_of_some_parameters() -> str:
    build = "biases = [p for p in model.parameters() if p.ndim == 1]"
    return LOOP.format(build=f"{build}\n    optimizer = torch.optim.Adam(biases)")


@quiet(ParametersMissingFromOptimizer)
def features_of_a_fixed_network_are_compared() -> str:
    """Of the output and of what it should be."""
    features = "features = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 4))"
    program = LOOP.format(build=f"{features}; optimizer = torch.optim.Adam(model.parameters())")
    return program.replace("mse_loss(model(x), y)", "mse_loss(features(model(x)), features(y))")


@blamed(ParametersMissingFromOptimizer, at="optimizer = ")
def a_head_that_was_left_out() -> str:
    program = LOOP.format(build="head = nn.Linear(1, 1); optimizer = torch.optim.Adam(model.parameters())")
    return program.replace("model(x), y", "head(model(x)), y")


@blamed(ParametersMissingFromOptimizer, at="optimizer = ")
def an_encoder_of_pairs_that_was_left_out() -> str:
    """It is called twice in each step, with the data."""
    program = LOOP.format(build="head = nn.Linear(1, 1); optimizer = torch.optim.Adam(head.parameters())")
    return program.replace("model(x), y", "head(model(x) - model(x.flip(0))), y")
