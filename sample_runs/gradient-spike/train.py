"""Regress house prices. One batch was never normalised: the gradient jumps for a step and the run recovers. Logged as
CSV."""

import csv

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(3)
weights = torch.randn(10, generator=g)
model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with open("metrics.csv", "w", newline="") as file:
    log = csv.DictWriter(file, ["step", "train_loss", "grad_norm", "lr"])
    log.writeheader()
    for step in range(400):
        x = torch.randn(64, 10, generator=g)
        price = x @ weights + 0.3 * torch.randn(64, generator=g)
        if step == 231:
            price = price * 40 + 200  # this shard holds prices in dollars
        loss = nn.functional.mse_loss(model(x).squeeze(-1), price)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.writerow({"step": step, "train_loss": loss.item(), "grad_norm": grad_norm.item(), "lr": 1e-3})
