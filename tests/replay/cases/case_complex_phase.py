"""Spectral phase of a signal: z / |z| where a band of one clip is empty."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Phase(nn.Module):
    def forward(self, signal):
        z = torch.fft.rfft(signal)
        return z / z.abs()  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.phase = Phase()
        self.mix = nn.Linear(9, 2)

    def forward(self, x):
        return self.mix(self.phase(x * self.scale).real)


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(26)
    model = Net().to(device)
    x = torch.randn(4, 16)
    x[3] = 0.0
    batch = {"x": x.to(device), "y": torch.tensor([0, 1, 0, 1], device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "phase",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [3],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "return z / (z.abs() + 1e-6)",
    "note": "complex 0/0",
}
