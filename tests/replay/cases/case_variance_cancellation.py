"""Variance as a difference of two large means: single precision makes it negative."""

import torch
import torch.nn as nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(6))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = torch.sqrt((x * x).mean(-1, keepdim=True) - mean * mean)  # CULPRIT
        return (x - mean) / (std + 1e-3) * self.w


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.f = nn.Linear(6, 1)

    def forward(self, x):
        return self.f(self.norm(x))


def build(device):
    torch.manual_seed(4)
    m = Net().to(device)
    x = torch.randn(6, 6, device=device)
    x[4] = 5690.75634765625
    return {
        "model": m,
        "optimizer": torch.optim.SGD(m.parameters(), lr=0.01),
        "step": lambda m, b: m(b["x"]).pow(2).mean(),
        "batch": {"x": x},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "norm",
    "op": "sqrt",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": True,
    "fixes": ["fp64", "drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "std = torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-9)",
}
