"""An adapter is thawed at step 21; one half of it starts at zero, so that the other has no gradient, and Adam with
eps=0 divides zero by zero. Checkpoints are torch.distributed.checkpoint folders."""

import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

torch.set_num_threads(1)


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, h):
        return h + self.up(self.down(h))


def batch(step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1)


def loss_of(model, b):
    x, y = (t.to(model[0].weight.device) for t in b)
    return ((model(x).squeeze(-1) - y) ** 2).mean()


def thaw(model, step):
    for p in model[2].parameters():
        p.requires_grad_(step > 20)


def make(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), Adapter(), nn.Linear(6, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=0.0)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=41)


def train(out, device="cpu"):
    os.makedirs(out)
    model, optimizer, scheduler = make(device)
    with open(os.path.join(out, "slurm-77.out"), "w") as log:
        for step in range(1, 31):
            thaw(model, step)
            loss = loss_of(model, batch(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            log.write(f"step: {step:4d}  loss: {loss.item():.6f}  lr: {scheduler.get_last_lr()[0]:.3e}\n")
            if step % 10 == 0:
                state = {
                    "model": model.state_dict(),
                    "optim": optimizer.state_dict(),
                    "sched": scheduler.state_dict(),
                    "step": torch.tensor(step),
                }
                dcp.save(state, checkpoint_id=os.path.join(out, f"step-{step}"))


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer, scheduler = make(ctx.device)
    return TrainStep(
        model, optimizer, loss_of, scheduler=scheduler, batches=batch, before_step=lambda step: thaw(model, step)
    )
