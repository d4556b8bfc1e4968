"""The learning rate lies a little above the stability limit: the loss grows over a hundred steps, from step 40 on."""

import torch
from common import Log, save
from torch import nn

torch.set_num_threads(1)


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(32, 4, generator=g) * torch.tensor([1.0, 1.0, 1.0, 3.0])
    return {"x": x, "y": x.sum(-1) + 0.5 * torch.randn(32, generator=g)}


def loss_of(model, b):
    return ((model(b["x"]).squeeze(-1) - b["y"]) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.13)


def train(out):
    model, optimizer = build()
    log = Log(out, ["loss"])
    for step in range(170):
        optimizer.param_groups[0]["lr"] = 0.03 if step < 40 else 0.13
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 20 == 19:
            save(out, step, model, optimizer)


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer = build()

    def set_rate(step):
        optimizer.param_groups[0]["lr"] = 0.03 if step < 40 else 0.13

    return TrainStep(model, optimizer, loss_of, batches=batch, before_step=set_rate)
