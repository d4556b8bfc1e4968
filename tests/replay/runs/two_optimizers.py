"""A small GAN, two optimizers with a sub-step each; the generator's gain is exactly zero for one latent."""

import os

import torch
from common import Log
from torch import nn

DEAD = 22


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 4)

    def forward(self, z):
        gain = z.abs().sum(-1, keepdim=True)
        return self.net(z / gain)  # CULPRIT


def batch(step):
    g = torch.Generator().manual_seed(7 * step)
    real, z = torch.randn(5, 4, generator=g), torch.randn(5, 3, generator=g)
    if step == DEAD:
        z[1] = 0.0
    return {"real": real, "z": z}


def loss_critic(models, b):
    with torch.no_grad():
        fake = models["gen"](torch.ones_like(b["z"]))
    return (
        nn.functional.softplus(models["critic"](fake)).mean()
        + nn.functional.softplus(-models["critic"](b["real"])).mean()
    )


def loss_gen(models, b):
    return nn.functional.softplus(-models["critic"](models["gen"](b["z"]))).mean()


def build():
    models = {"gen": Generator(), "critic": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))}
    optimizers = {
        "critic": torch.optim.Adam(models["critic"].parameters(), lr=2e-3),
        "gen": torch.optim.Adam(models["gen"].parameters(), lr=1e-3),
    }
    return models, optimizers


def train(out):
    torch.manual_seed(0)
    models, optimizers = build()
    log = Log(out, ["loss_critic", "loss_gen"])
    for step in range(1, 30):
        b = batch(step)
        values = []
        for name, function in (("critic", loss_critic), ("gen", loss_gen)):
            optimizers[name].zero_grad()
            loss = function(models, b)
            loss.backward()
            optimizers[name].step()
            values.append(loss.item())
        log(step, *values)
        if step % 6 == 0:
            state = {k: m.state_dict() for k, m in models.items()} | {
                f"optimizer_{k}": o.state_dict() for k, o in optimizers.items()
            }
            torch.save({**state, "step": step}, os.path.join(out, f"step_{step}.pt"))


def recipe(ctx):
    from postmortem import TrainStep

    models, optimizers = build()
    return TrainStep(models, optimizers, {"critic": loss_critic, "gen": loss_gen}, batches=batch)
