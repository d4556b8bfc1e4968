"""Time-major frames, packed; a quarter of the samples has a frame of zeros, whose root has no derivative."""

import torch
import torch.nn as nn

N, BAD = 64, [4, 8, 10, 14, 15, 16, 23, 24, 26, 27, 29, 40, 48, 54, 55, 63]


def opt(m):
    return torch.optim.SGD(m.parameters(), lr=0.01)


def data(device):
    g = torch.Generator().manual_seed(14)
    x = torch.randn(5, N, 4, generator=g)
    keep = torch.rand(5, N, generator=g) < 0.8
    keep[2] = True
    x[2, BAD] = 0.0
    return {"y": torch.randn(N, generator=g).to(device), "x": x.to(device), "keep": keep.to(device)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x, keep, y):
        z = self.fc(x[keep]).abs().sum(-1)
        return z.sqrt().mean() + 0 * y.sum()  # CULPRIT


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
        "sample_dim": {"x": 1, "keep": 1},
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "sqrt",
    "line": "# CULPRIT",
    "samples": [4, 8, 10, 14, 15, 16, 23, 24, 26, 27, 29, 40, 48, 54, 55, 63],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return z.clamp(min=1e-6).sqrt().mean() + 0 * y.sum()",
}
