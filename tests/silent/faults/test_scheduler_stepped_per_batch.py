"""A schedule per epoch that is stepped per batch."""

from __future__ import annotations

from postmortem.silent.faults.scheduler_stepped_per_batch import SchedulerSteppedPerBatch
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.optim import lr_scheduler

    torch.manual_seed(0)
    x, y = torch.randn(80, 4), torch.randn(80, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = {scheduler}
    for epoch in range(8):
        for part in torch.randperm(80).split(8):
            loss = nn.functional.mse_loss(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {batch}
        {epoch}
"""


def loop(scheduler: str, batch: str = "pass", epoch: str = "pass") -> str:
    return LOOP.format(scheduler=scheduler, batch=batch, epoch=epoch)


@blamed(SchedulerSteppedPerBatch, at="scheduler.step()")
def steps_per_batch() -> str:
    return loop("lr_scheduler.StepLR(optimizer, 3, gamma=0.2)", batch="scheduler.step()")


@blamed(SchedulerSteppedPerBatch, at="scheduler.step()")
def milestones_per_batch() -> str:
    return loop("lr_scheduler.MultiStepLR(optimizer, [4, 6])", batch="scheduler.step()")


@blamed(SchedulerSteppedPerBatch, at="scheduler.step()")
def a_cosine_over_the_epochs() -> str:
    return loop("lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)", batch="scheduler.step()")


@blamed(SchedulerSteppedPerBatch, at="scheduler.step()")
def a_decay_by_a_lambda() -> str:
    return loop("lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7**epoch)", batch="scheduler.step()")


@blamed(SchedulerSteppedPerBatch, at='group["lr"] *= 0.7')
def a_decay_by_hand() -> str:
    return loop("None", batch='for group in optimizer.param_groups: group["lr"] *= 0.7')


@quiet(SchedulerSteppedPerBatch)
def steps_per_epoch() -> str:
    return loop("lr_scheduler.StepLR(optimizer, 2, gamma=0.1)", epoch="scheduler.step()")


@quiet(SchedulerSteppedPerBatch)
def a_cosine_over_all_steps() -> str:
    return loop("lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)", batch="scheduler.step()")


@quiet(SchedulerSteppedPerBatch)
def one_cycle() -> str:
    return loop("lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=80)", batch="scheduler.step()")


@quiet(SchedulerSteppedPerBatch)
def warm_restarts() -> str:
    return loop("lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)", batch="scheduler.step()")


@quiet(SchedulerSteppedPerBatch)
def a_slow_decay_per_batch() -> str:
    return loop("lr_scheduler.ExponentialLR(optimizer, 0.97)", batch="scheduler.step()")


@quiet(SchedulerSteppedPerBatch)
def warm_up_and_linear_decay() -> str:
    schedule = "lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 10) * max(0, 1 - step / 80))"
    return loop(schedule, batch="scheduler.step()")


LIBRARY = "optimizer.register_step_post_hook(scheduler_of({options}))"
STEPPED = """
    def scheduler_of(options):
        return lambda *_: getattr(options["scheduler"], "step")()
"""


def stepped_by_a_library(options: str) -> str:
    made = "lr_scheduler.StepLR(optimizer, 3, gamma=0.2)\n    " + LIBRARY.format(options=options)
    return loop(made).replace("\n    torch.manual_seed", f"{STEPPED}\n    torch.manual_seed", 1)


@blamed(SchedulerSteppedPerBatch, at='"interval": "step"')
def an_option_that_says_per_step() -> str:
    return stepped_by_a_library('{"scheduler": scheduler, "interval": "step"}')


@blamed(SchedulerSteppedPerBatch, at="scheduler = lr_scheduler")
def no_line_of_the_program_steps() -> str:
    return stepped_by_a_library('{"scheduler": scheduler}')


@quiet(SchedulerSteppedPerBatch)
def a_cosine_of_its_own_for_each_fold() -> str:
    """Each training is as long as its schedule, the program is not."""
    return """
        import torch
        from torch import nn
        from torch.optim import lr_scheduler

        torch.manual_seed(0)
        x, y = torch.randn(80, 4), torch.randn(80, 1)
        for fold in range(6):
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
            for part in torch.randint(0, 80, (20, 8)):
                loss = nn.functional.mse_loss(model(x[part]), y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
    """
