"""One label of the batch of step 78 is 1e3: the loss jumps at that step, recovers, and stays finite."""

import torch
from common import Log, save
from torch import nn

torch.set_num_threads(1)
AT, SAMPLE = 78, 5


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(16, 4, generator=g)
    y = x.sum(-1) + 0.1 * torch.randn(16, generator=g)
    if step == AT:
        y[SAMPLE] = 1e3
    return {"x": x, "y": y}


def loss_of(model, b):
    return ((model(b["x"]).squeeze(-1) - b["y"]) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.Adam(model.parameters(), lr=3e-3)


def train(out):
    model, optimizer = build()
    log = Log(out, ["loss"])
    for step in range(120):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 20 == 19:
            save(out, step, model, optimizer)


def recipe(ctx):
    from postmortem import TrainStep

    return TrainStep(*build(), loss_of, batches=batch)
