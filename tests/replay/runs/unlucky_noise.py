"""The fault hangs on the random numbers: dropout may leave nothing of a row. Batches are drawn with numpy and
python."""

import random

import numpy as np
import torch
from common import Log, save
from torch import nn


class Directions(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(5, 1)

    def forward(self, x):
        x = self.drop(x)
        return self.out(x / x.norm(dim=-1, keepdim=True))  # CULPRIT


DATA = torch.randn(200, 5, generator=torch.Generator().manual_seed(3))


def batch(step):
    rows = np.random.randint(0, 200, 3)
    return {"x": DATA[rows] * random.uniform(0.9, 1.1), "y": DATA[rows].sum(-1)}


def loss_of(model, b):
    return ((model(b["x"]).squeeze(-1) - b["y"]) ** 2).mean()


def train(out):
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    model = Directions()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    log = Log(out, ["loss"])
    for step in range(60):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 4 == 3:
            save(
                out,
                step,
                model,
                optimizer,
                rng={"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()},
            )


def recipe(ctx):
    from postmortem import TrainStep

    model = Directions().to(ctx.device)
    random.seed(99)  # has no effect: the saved states are put back later
    return TrainStep(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss_of, batches=batch)
