"""A run that was resumed with a learning rate 200 times too high: it diverges over the next steps."""

import torch
from common import Log, save
from torch import nn

GOOD, WRONG, RESUMED = 0.02, 4.0, 30


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=g)
    return x, x.sum(-1) + 0.1 * torch.randn(16, generator=g)


def loss_of(model, b):
    return ((model(b[0]).squeeze(-1) - b[1]) ** 2).mean()


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))


def train(out):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=GOOD)
    log = Log(out, ["loss", "lr"], lr=WRONG)
    for step in range(RESUMED + 25):
        if step == RESUMED:
            optimizer.param_groups[0]["lr"] = WRONG
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item(), optimizer.param_groups[0]["lr"])
        if step % 10 == 9:
            save(out, step, model, optimizer)


def recipe(ctx):
    from postmortem import TrainStep

    model = build().to(ctx.device)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=ctx.config["lr"]), loss_of, batches=batch)


def recipe_by_hand(ctx):
    from postmortem import TrainStep

    model = build().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=GOOD)

    def set_rate(step):
        optimizer.param_groups[0]["lr"] = WRONG if step >= RESUMED else GOOD

    return TrainStep(model, optimizer, loss_of, batches=batch, before_step=set_rate)
