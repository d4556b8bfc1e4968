"""Frames packed across samples; those of silent ones, a quarter of the batch, have energy zero, whose root has no
derivative."""

import torch
import torch.nn as nn

N, BAD = 64, [0, 1, 2, 9, 16, 17, 18, 22, 24, 25, 29, 34, 39, 46, 56, 57]


def opt(m):
    return torch.optim.SGD(m.parameters(), lr=0.01)


def data(device):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(N, 5, 4, generator=g)
    keep = torch.rand(N, 5, generator=g) < 0.7
    keep[:, 1] = True
    x[BAD, 1] = 0.0
    return {"y": torch.randn(N, generator=g).to(device), "x": x.to(device), "keep": keep.to(device)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x, keep, y):
        z = self.fc(x[keep])
        return z.pow(2).sum(-1).pow(0.25).mean()  # CULPRIT


def build(device):
    torch.manual_seed(0)
    m = Net().to(device)
    return {
        "model": m,
        "optimizer": opt(m),
        "step": lambda m, b: m(**b),
        "batch": data(device),
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "pow",
    "line": "# CULPRIT",
    "samples": [0, 1, 2, 9, 16, 17, 18, 22, 24, 25, 29, 34, 39, 46, 56, 57],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (z.pow(2).sum(-1) + 1e-6).pow(0.25).mean()",
}
