"""The derivative of a distance is not finite where two points coincide: the loss of that step is fine, the next one is
NaN."""

import torch
from common import Log, save
from torch import nn

SAME = 26


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 4)

    def forward(self, a, b):
        gap = self.embed(a) - self.embed(b)
        return torch.sqrt((gap * gap).sum(-1))  # CULPRIT


def batch(step):
    g = torch.Generator().manual_seed(100 + step)
    a, b = torch.randn(7, 5, generator=g), torch.randn(7, 5, generator=g)
    if step == SAME:
        b[2] = a[2]
    return a, b


def loss_of(model, b):
    return (model(*(t.to(model.embed.weight.device) for t in b)) - 1.0).abs().mean()


def train(out, device="cpu"):
    torch.manual_seed(0)
    model = Distance().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    log = Log(out, ["loss"])
    for step in range(32):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 8 == 7:
            save(out, step, model, optimizer)


def recipe(ctx):
    from postmortem import TrainStep

    model = Distance().to(ctx.device)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9), loss_of, batches=batch)
