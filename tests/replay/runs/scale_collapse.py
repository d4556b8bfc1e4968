"""From step 21 on every batch has a row of zeros: the gradient is never finite again, and the scaler halves itself to
death."""

import torch
from common import Log, save
from torch import nn

SINCE = 21


class Length(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        h = self.embed(x)
        return torch.sqrt((h * h).sum(-1))  # CULPRIT


def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(5, 4, generator=g)
    if step >= SINCE:
        x[3] = 0.0
    return x


def loss_of(model, x):
    return (model(x) - 1.0).abs().mean()


def train(out):
    torch.manual_seed(0)
    model = Length()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    log = Log(out, ["loss", "loss_scale"])
    for step in range(120):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        log(step, loss.item(), scaler.get_scale())
        scaler.update()
        if step % 15 == 14:
            save(out, step, model, optimizer, scaler=scaler.state_dict())


def recipe(ctx):
    from postmortem import TrainStep

    model = Length().to(ctx.device)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-2), loss_of, batches=batch, scaler=True)
