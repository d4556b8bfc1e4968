"""Autocast to fp16 with a GradScaler: the energy of one loud sample is larger than fp16 can hold."""

import torch
from common import Log, save
from torch import nn

LOUD = 37


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        h = self.project(x)
        return (h * h).sum(-1)  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = Energy()
        self.head = nn.Linear(1, 1)

    def forward(self, x):
        return self.head(torch.log1p(self.energy(x))[:, None]).squeeze(-1)


def batch(step):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(6, 8, generator=g), torch.randn(6, generator=g)
    if step == LOUD:
        x[4] *= 900.0
    return {"x": x, "y": y}


def loss_of(model, b):
    x, y = (b[name].to(model.head.weight.device) for name in ("x", "y"))
    return ((model(x) - y) ** 2).mean()


def train(out, device="cpu"):
    torch.manual_seed(0)
    model = Net().to(device)
    with torch.no_grad():
        model.energy.project.weight.copy_(torch.eye(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    log = Log(out, ["loss", "scale"])
    for step in range(45):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = loss_of(model, batch(step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        log(step, loss.item(), scaler.get_scale())
        scaler.update()
        if step % 10 == 9:
            save(out, step, model, optimizer, scaler=scaler.state_dict())


def recipe(ctx):
    from postmortem import TrainStep

    model = Net().to(ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return TrainStep(model, optimizer, loss_of, batches=batch, autocast="fp16", scaler=True, init_scale=1024.0)
