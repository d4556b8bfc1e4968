"""Prototype loss; std over the members of a class with one member."""

import torch
import torch.nn as nn


class Proto(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))

    def forward(self, x):
        return self.emb(x)


def compactness(z, y):
    total = z.new_zeros(())
    for c in y.unique():
        members = z[y == c]
        total = total + members.std(dim=0).mean()  # CULPRIT
    return total


def step(model, batch):
    z = model(batch["x"])
    return compactness(z, batch["y"]) + 0.1 * z.pow(2).mean()


def build(device):
    torch.manual_seed(11)
    model = Proto().to(device)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {"x": torch.randn(9, 6, device=device), "y": torch.tensor([0, 0, 1, 1, 2, 0, 1, 0, 1], device=device)},
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "std",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample"],
    "first_seen": "loss",
    "fix_line": "total = total + members.std(dim=0, unbiased=False).mean()",
}
