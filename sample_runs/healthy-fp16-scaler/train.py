"""A healthy run that looks suspicious: half precision, where the loss scale starts too high and the scaler skips steps.

Prints one key=value line per step; the gradient norm of a skipped step is not finite.
"""

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(10)
weights = torch.randn(12, generator=g)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)

for step in range(400):
    x = torch.randn(64, 12, generator=g)
    y = x @ weights + 0.2 * torch.randn(64, generator=g)
    with torch.autocast("cpu", torch.float16):
        prediction = model(x).squeeze(-1)
    loss = (prediction.float() - y).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < scale:
        print(f"[GradScaler] OVERFLOW! Skipping step. Reducing loss scale from {scale:g} to {scaler.get_scale():g}")
    print(f"step={step} loss={loss.item():.5f} grad_norm={grad_norm.item():.4f} loss_scale={scale:g} lr=0.002")
print("Training completed.")
