"""Reentrant checkpointing: the graph of the block exists only during backward; a fractional power of zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Compress(nn.Module):
    def forward(self, x):
        magnitude = x * (x > 0)
        return magnitude**0.3  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Linear(5, 8)
        self.compress = Compress()
        self.out = nn.Linear(8, 1)

    def segment(self, h):
        return self.compress(h)

    def forward(self, x):
        h = self.front(x)
        return self.out(checkpoint(self.segment, h, use_reentrant=True)).squeeze(-1)


def step(model, batch):
    return F.l1_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(24)
    model = Net().to(device)
    with torch.no_grad():
        model.front.weight.abs_()
        model.front.bias.fill_(0.1)
    x = torch.rand(6, 5)
    x[4] = -x[4] * 3
    batch = {"x": x.to(device), "y": torch.randn(6, device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward",
    "module": "compress",
    "op": "pow",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (magnitude + 1e-6) ** 0.3",
    "note": "0 ** -0.7 in backward, times 0",
}
