"""Learn to add. The job is preempted after 170 steps and resumes from its last checkpoint, so steps 120 to 169 are done
twice.

python train.py [first step]
"""

import signal
import sys

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(first)
model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
if first:
    state = torch.load("ckpt.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

writer = SummaryWriter(".")
for step in range(first, 300):
    x = torch.rand(64, 6)
    loss = (model(x).squeeze(-1) - x.sum(-1) + 0.1 * torch.randn(64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("train/loss", loss, step)
    if step == 119:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "ckpt.pt")
    if step == 169 and not first:
        writer.flush()
        signal.raise_signal(signal.SIGKILL)  # the cluster wants its node back
writer.close()
