"""A router that masks every expert of one sample: the logsumexp over nothing but -inf is what fails, not the mask."""

import torch
import torch.nn as nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(5, 4)

    def forward(self, x, allowed):
        s = self.gate(x).masked_fill(~allowed, float("-inf"))
        z = torch.logsumexp(s, -1)  # CULPRIT
        return s, z


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()

    def forward(self, x, allowed):
        _s, z = self.router(x, allowed)
        return (z**2).mean()


def build(device):
    torch.manual_seed(1)
    m = Net().to(device)
    a = torch.rand(6, 4, device=device) < 0.8
    a[:, 0] = True
    a[4] = False
    return {
        "model": m,
        "optimizer": torch.optim.SGD(m.parameters(), lr=0.1),
        "step": lambda m, b: m(b["x"], b["allowed"]),
        "batch": {"x": torch.randn(6, 5, device=device), "allowed": a},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "router",
    "op": "logsumexp",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample"],
    "first_seen": "loss",
    "fix_line": "z = torch.logsumexp(s.clamp(min=-1e9), -1) * 1e-3",
}
