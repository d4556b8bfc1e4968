"""A healthy run with a -inf mask, an overflow that the scaler handles, accumulation, clipping and a scheduler."""

import torch
from common import Log, save
from torch import nn


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(6, 6)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x):
        return (torch.softmax(self.q(x) @ x.transpose(1, 2) + self.mask, -1) @ x).mean((1, 2))


def batches(step):
    g = torch.Generator().manual_seed(step)
    return [(torch.randn(3, 4, 6, generator=g), torch.randn(3, generator=g)) for _ in range(2)]


def loss_of(model, b):
    return ((model(b[0]) - b[1]) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = Attend()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def train(out):
    model, optimizer, scheduler = build()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2000)
    log = Log(out, ["loss"])
    for step in range(30):
        optimizer.zero_grad()
        total = 0.0
        for b in batches(step):
            loss = loss_of(model, b) / 2
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        log(step, total)
        if step % 10 == 0:
            save(out, step, model, optimizer, scheduler=scheduler.state_dict(), scaler=scaler.state_dict())


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer, scheduler = build()
    return TrainStep(
        model, optimizer, loss_of, batches=batches, scheduler=scheduler, scaler=True, accumulate=2, clip=1.0
    )
