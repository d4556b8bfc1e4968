"""weight_norm on a row that is all zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(2, 6, 3, padding=1)
        self.gate = weight_norm(nn.Conv1d(6, 6, 3, padding=1))
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = h + torch.tanh(self.gate(h))  # CULPRIT
        return self.out(h.mean(-1))


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(8)
    model = Wave().to(device)
    with torch.no_grad():
        model.gate.parametrizations.weight.original1[3] = 0
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {"x": torch.randn(3, 2, 8, device=device), "y": torch.randn(3, 1, device=device)},
    }


TRUTH = {
    "phase": "forward",
    "module": "gate|gate.parametrizations.weight|gate.parametrizations.weight.0",
    "op": "weight_norm|_weight_norm_interface|div|weight_norm_interface",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "fix_line": "h = h + torch.tanh(self.inp(x))",
}
