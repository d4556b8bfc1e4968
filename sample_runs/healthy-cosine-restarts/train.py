"""A healthy run that looks suspicious: cosine learning rate with warm restarts, and the loss goes up at each of
them."""

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
g = torch.Generator().manual_seed(9)
teacher = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=200, eta_min=1e-4)

writer = SummaryWriter(".")
for step in range(800):
    x = torch.randn(64, 8, generator=g)
    with torch.no_grad():
        target = teacher(x) + 0.01 * torch.randn(64, 4, generator=g)
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    writer.add_scalar("train/loss", loss, step)
    writer.add_scalar("train/grad_norm", grad_norm, step)
    writer.add_scalar("train/lr", schedule.get_last_lr()[0], step)
    schedule.step()
writer.close()
