"""Batches drawn one step ahead, from the global generator that dropout uses as well, as nanoGPT does.

The random state in a checkpoint is that after the draw of the next batch, and after an evaluation where there was one.
"""

import torch
from common import Log, save
from torch import nn

torch.manual_seed(3)
DATA = torch.randn(400, 6)
DATA[57, 2] = 0.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return (self.net(x).squeeze(1) / x[:, 2]).pow(2).clamp(max=4)  # CULPRIT


def draw():
    return DATA[torch.randint(len(DATA), (8,))]


class Ahead:
    """A loader that draws its first batch when it begins and the next one with each batch that it gives out."""

    def __iter__(self):
        kept = draw()
        while True:
            kept, batch = draw(), kept
            yield batch


def build():
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(out, evaluations=5, dropout=0.2, looks_ahead=False, until=40):
    model, optimizer = build()
    model.net[2].p = dropout
    log = Log(out, ["loss"], dropout=dropout)
    if looks_ahead:
        train_with_loader(out, model, optimizer, log, until)
        return
    batch = draw()
    for step in range(until):
        if step % 5 == 0:
            for _ in range(evaluations):
                with torch.no_grad():
                    model.eval()(draw())
            model.train()
            state = {"rng": torch.get_rng_state()}
            save(out, step, model, optimizer, iter_num=step, **state)
        loss = model(batch).mean()
        batch = draw()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())


def train_with_loader(out, model, optimizer, log, until):
    batches = iter(Ahead())
    for step, batch in zip(range(until), batches, strict=False):
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 5 == 0:
            save(out, step, model, optimizer, rng=torch.get_rng_state())


def ahead(ctx):
    step = recipe(ctx)
    step.model.net[2].p = ctx.config["dropout"]
    step.batches = Ahead()
    return step


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer = build()
    return TrainStep(model, optimizer, lambda m, b: m(b).mean(), batches=lambda step: draw())
