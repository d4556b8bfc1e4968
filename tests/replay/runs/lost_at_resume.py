"""A classifier that is resumed with a learning rate 1800 times too high: its loss leaps within two steps and stays up
there, finite all the time."""

import os

import torch
from common import Log, save
from torch import nn

GOOD, WRONG, RESUMED = 0.05, 90.0, 60


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(32, 6, generator=g)
    return x, x[:, :3].argmax(-1)


def loss_of(model, b):
    return nn.functional.cross_entropy(8 * torch.tanh(model(b[0])), b[1])


def build(rate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3, bias=False))
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def train(out):
    model, optimizer = build(GOOD)
    log = Log(out, ["loss", "lr"], lr=WRONG)
    for step in range(RESUMED + 10):
        one_step(model, optimizer, step, log)
        if (step + 1) % 20 == 0:
            save(out, step + 1, model, optimizer)  # the step to come
    model.load_state_dict(torch.load(os.path.join(out, f"step_{RESUMED:05d}.pt"))["model"])
    optimizer.load_state_dict(torch.load(os.path.join(out, f"step_{RESUMED:05d}.pt"))["optimizer"])
    optimizer.param_groups[0]["lr"] = WRONG
    for step in range(RESUMED, RESUMED + 60):
        one_step(model, optimizer, step, log)
        if (step + 1) % 20 == 0:
            save(out, step + 1, model, optimizer)


def one_step(model, optimizer, step, log):
    loss = loss_of(model, batch(step))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log(step, loss.item(), optimizer.param_groups[0]["lr"])


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer = build(ctx.config["lr"])
    return TrainStep(model, optimizer, loss_of, batches=batch)
