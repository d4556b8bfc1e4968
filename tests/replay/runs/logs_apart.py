"""The log lies in a folder of its own, the checkpoints beside it, with a copy of averaged weights in front. One frame
is black: its step alone is NaN, as no gradient passes. Samples are in dimension 1."""

import copy
import os

import torch
from common import Log
from torch import nn

X = torch.rand(6, 300, 8, generator=torch.Generator().manual_seed(5)).permute(1, 0, 2).contiguous()
X[167] = 0.0


class Where(nn.Module):
    def forward(self, heat):
        p = heat / heat.sum(1, keepdim=True)  # CULPRIT
        return (p * torch.arange(8, device=heat.device)).sum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.where = nn.Conv1d(6, 1, 3, padding=1, bias=False), Where()

    def forward(self, frames):
        return self.where(self.filter(frames.transpose(0, 1)).squeeze(1).relu())


def batch(step):
    rows = X[step * 5 : step * 5 + 5]
    return {"frames": rows.transpose(0, 1), "at": rows.sum(1).argmax(1).float()}


def loss_of(model, b):
    device = model.filter.weight.device
    return (model(b["frames"].to(device)) - b["at"].to(device)).abs().mean()


def make(device):
    torch.manual_seed(1)
    model = Net()
    nn.init.uniform_(model.filter.weight, 0.1, 0.4)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)


def train(out, device="cpu"):
    model, optimizer, scheduler = make(device)
    average = copy.deepcopy(model)
    log = Log(os.path.join(out, "logs"), ["train/l1", "grad_norm"])
    for step in range(45):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        scheduler.step()
        average.filter.weight.data.lerp_(model.filter.weight.data, 0.1)
        log(step, loss.item(), norm.item())
        if step % 10 == 9:
            weights = {f"module.{k}": v for k, v in model.state_dict().items()}
            state = {"ema_state_dict": average.state_dict(), "state_dict": weights, "optimizer": optimizer.state_dict()}
            torch.save(
                {**state, "lr_sched": scheduler.state_dict(), "global_step": step},
                os.path.join(out, f"weights_{step}.pth"),
            )


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer, scheduler = make(ctx.device)
    return TrainStep(
        model,
        optimizer,
        loss_of,
        scheduler=scheduler,
        batches=batch,
        clip=2.0,
        sample_dim={"frames": 1},
        logged="train/l1",
    )
