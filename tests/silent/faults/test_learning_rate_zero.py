"""A learning rate of 0."""

from __future__ import annotations

from postmortem.silent.faults.learning_rate_zero import LearningRateZero
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randn(240, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = {optimizer}
    scheduler = {scheduler}
    for step in range(20):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {after}
"""


def loop(optimizer: str, scheduler: str = "None", after: str = "pass") -> str:
    return LOOP.format(optimizer=optimizer, scheduler=scheduler, after=after)


@blamed(LearningRateZero, at="optimizer =")
def zero_in_the_options() -> str:
    return loop("torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)")


@blamed(LearningRateZero, at="optimizer =")
def as_good_as_zero() -> str:
    return loop("torch.optim.Adam(model.parameters(), lr=1e-9)")


@blamed(LearningRateZero, at="scheduler =")
def an_integer_division_in_the_warm_up() -> str:
    schedule = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step // 100, 1))"
    return loop("torch.optim.SGD(model.parameters(), lr=0.1)", schedule, "scheduler.step()")


@quiet(LearningRateZero)
def a_warm_up_from_zero() -> str:
    schedule = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 15)"
    return loop("torch.optim.SGD(model.parameters(), lr=0.1)", schedule, "scheduler.step()")


@quiet(LearningRateZero)
def a_group_with_a_rate_of_zero() -> str:
    groups = '[{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]'
    return loop(f"torch.optim.Adam({groups}, lr=1e-3)")


@quiet(LearningRateZero)
def a_tiny_rate_for_huge_gradients() -> str:
    return loop("torch.optim.SGD(model.parameters(), lr=1e-8)").replace(
        "mse_loss(model(x), y)", "mse_loss(model(x), y) * 1e6"
    )


def decay(factor: str) -> str:
    schedule = f"torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {factor})"
    program = loop("torch.optim.SGD(model.parameters(), lr=0.1)", schedule, "scheduler.step()")
    return program.replace("range(20)", "range(40)")


@blamed(LearningRateZero, at="scheduler =")
def zero_after_the_first_step() -> str:
    return decay("(40 - step) // 40")


@quiet(LearningRateZero)
def a_decay_to_zero() -> str:
    return decay("(40 - step) / 40")


@quiet(LearningRateZero)
def rates_that_are_tried() -> str:
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        x, y = torch.randn(64, 4), torch.randn(64, 1)
        for rate in (1e-9, 1e-3, 1e-1):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for step in range(20):
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """
