"""Fit a linear probe on frozen features. The learning rate warms up past what they can take. Logged with W&B, offline.

Plain gradient descent on a square error diverges where the learning rate exceeds 2 / (largest eigenvalue of the
Hessian).
"""

import torch
import wandb
from torch import nn

PEAK_LR = 0.036
STEPS, WARMUP = 400, 400

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
weights = torch.randn(32, generator=g) / 6
probe = nn.Linear(32, 1)
optimizer = torch.optim.SGD(probe.parameters(), lr=PEAK_LR)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))

run = wandb.init(
    project="probes",
    name="diverged-lr",
    config={"peak_lr": PEAK_LR, "steps": STEPS, "warmup": WARMUP, "optimizer": "SGD"},
)
for step in range(STEPS):
    features = torch.randn(128, 32, generator=g) + torch.randn(128, 1, generator=g)  # correlated, as features are
    target = features @ weights + 0.3 * torch.randn(128, generator=g)
    loss = (probe(features).squeeze(-1) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.get_total_norm([p.grad for p in probe.parameters()])
    run.log({"train/loss": loss.item(), "train/grad_norm": grad_norm.item(), "train/lr": schedule.get_last_lr()[0]})
    optimizer.step()
    schedule.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
run.finish()
