"""Learn a shuffled alphabet. Something outside kills the process in the middle, without a word. Prints what nanoGPT
prints."""

import signal
import time

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(6)
following = torch.randperm(26, generator=g)
model = nn.Sequential(nn.Embedding(26, 24), nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 26))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

print(f"number of parameters: {sum(p.numel() for p in model.parameters()) / 1e3:.1f}K")
print("max_iters = 400")
for it in range(400):
    start = time.time()
    letter = torch.randint(0, 26, (32,), generator=g)
    target = torch.where(torch.rand(32, generator=g) < 0.9, following[letter], torch.randint(0, 26, (32,), generator=g))
    loss = nn.functional.cross_entropy(model(letter), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 2 == 0:
        print(f"iter {it}: loss {loss.item():.4f}, time {(time.time() - start) * 1000:.2f}ms, mfu 0.31%", flush=True)
    if it == 263:
        signal.raise_signal(signal.SIGKILL)  # stands in for the kernel when the node runs out of memory
