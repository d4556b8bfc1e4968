"""A sharded checkpoint was damaged on disk; the run that was resumed from it is NaN from its first step on."""

import json
import os

import torch
from common import Log
from safetensors.torch import save_file
from torch import nn

RESUMED = 20


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(8, 6, generator=g)
    return x, x[:, 0]


def loss_of(model, b):
    return ((model(b[0]).squeeze(-1) - b[1]) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def save_sharded(out, step, model, optimizer):
    folder = os.path.join(out, f"checkpoint-{step}")
    os.makedirs(folder)
    names = {k: f"model-0000{1 + k.startswith('2')}-of-00002.safetensors" for k in model.state_dict()}
    for name in set(names.values()):
        save_file({k: v for k, v in model.state_dict().items() if names[k] == name}, os.path.join(folder, name))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"weight_map": names}, f)
    torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))


def train(out):
    model, optimizer = build()
    log = Log(out, ["loss"])
    for step in range(1, 30):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 5 == 0 and step <= RESUMED:
            if step == RESUMED:  # the shard is damaged while it is written, and the run goes on from there
                with torch.no_grad():
                    model[2].weight[0, 3] = float("nan")
            save_sharded(out, step, model, optimizer)


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer = build()
    return TrainStep(model, optimizer, loss_of, batches=batch)
