"""Classify points. The scheduler is stepped by both the accelerator and the loop, so the learning rate is zero halfway.

Prints what the transformers Trainer prints.
"""

import time

import torch
from torch import nn

STEPS = 600

torch.manual_seed(0)
g = torch.Generator().manual_seed(4)
centres = torch.randn(10, 16, generator=g)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))

print(f"***** Running training *****\n  Num examples = {64 * STEPS}\n  Total optimization steps = {STEPS}")
seconds, total = 0.0, 0.0
for step in range(1, STEPS + 1):
    began = time.time()
    label = torch.randint(0, 10, (64,), generator=g)
    x = centres[label] + torch.randn(64, 16, generator=g)
    loss = nn.functional.cross_entropy(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += loss.item()
    seconds += time.time() - began
    if step % 5 == 0:
        lr = schedule.get_last_lr()[0]
        row = {"loss": round(loss.item(), 4), "grad_norm": round(grad_norm.item(), 4), "learning_rate": lr}
        print(row | {"epoch": round(step / 200, 3), "step": step})
    schedule.step()  # the accelerator's
    schedule.step()  # and ours
print(
    {
        "train_runtime": round(seconds, 2),
        "train_steps_per_second": round(STEPS / seconds, 2),
        "train_loss": round(total / STEPS, 4),
        "epoch": 3.0,
    }
)
