"""Inputs with scales far apart."""

from __future__ import annotations

from postmortem.silent.faults.inputs_not_normalised import InputsNotNormalised
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4) * torch.tensor({scales}), torch.randint(0, 3, (240,))
    model = nn.Sequential({first}nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(240).split(16):
        loss = nn.functional.cross_entropy(model({given}), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
APART = "[1.0, 0.5, 30000.0, 2.0]"


def loop(scales: str = APART, first: str = "", given: str = "x[part]") -> str:
    return LOOP.format(scales=scales, first=first, given=given)


@blamed(InputsNotNormalised, at="model(x[part])")
def incomes_and_ages() -> str:
    return loop()


@blamed(InputsNotNormalised, at="model(x[part])")
def all_of_them_large() -> str:
    return loop("[5000.0, 20000.0, 30000.0, 20000.0]")


HOUSES = "[1800.0, 4.0, 1970.0, 41.0]"


def houses(first: str = "") -> str:
    """A regression, in which the columns are a factor of 500 apart."""
    program = loop(HOUSES, first).replace("torch.randint(0, 3, (240,))", "torch.randn(240, 1)")
    program = program.replace("cross_entropy", "mse_loss").replace("nn.Linear(8, 3)", "nn.Linear(8, 1)")
    program = program.replace("nn.Tanh()", "nn.ReLU()").replace("split(16)", "split(4)")
    return program.replace("SGD(model.parameters(), lr=0.05)", "Adam(model.parameters())")


@blamed(InputsNotNormalised, at="model(x[part])")
def a_loss_above_that_of_a_constant_prediction() -> str:
    return houses()


@quiet(InputsNotNormalised)
def large_targets_that_are_not_reached_yet() -> str:
    """The loss stays far above that of a constant prediction, as it would with any inputs."""
    return (
        houses()
        .replace("[1800.0, 4.0, 1970.0, 41.0]", "[0.2, 0.5, 30.0, 50.0]")
        .replace("torch.randn(240, 1)", "900 + torch.randn(240, 1)")
    )


@quiet(InputsNotNormalised)
def a_tiny_column_beside_ordinary_ones() -> str:
    return loop("[1.0, 0.5, 0.0001, 1.0]")


@quiet(InputsNotNormalised)
def columns_of_that_size_that_are_normalised() -> str:
    return houses("nn.BatchNorm1d(4), ")


@quiet(InputsNotNormalised)
def standardised() -> str:
    return loop(given="(x[part] - x.mean(0)) / x.std(0)")


@quiet(InputsNotNormalised)
def a_first_layer_that_normalises() -> str:
    return loop(first="nn.BatchNorm1d(4), ")


@quiet(InputsNotNormalised)
def columns_that_differ_a_little() -> str:
    return loop("[1.0, 0.5, 30.0, 0.0]")


@blamed(InputsNotNormalised, at="model(x[part]")
def pictures_of_sixteen_bits() -> str:
    return loop("[60000.0, 60000.0, 60000.0, 60000.0]", "nn.Flatten(), ", "x[part].view(-1, 1, 2, 2)")


@quiet(InputsNotNormalised)
def a_model_that_scales_its_inputs() -> str:
    """Its first layer gets what it has scaled."""
    scaled = """
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
            self.register_buffer("mean", x.mean(0))
            self.register_buffer("size", x.std(0))

        def forward(self, x):
            return self.body((x - self.mean) / self.size)


    model = Scaled()
    optimizer"""
    return loop().replace("\n    optimizer", scaled, 1)
