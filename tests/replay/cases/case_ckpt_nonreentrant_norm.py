"""Activation checkpointing (not reentrant) around a block that takes the length of a vector by hand."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Length(nn.Module):
    def forward(self, v):
        squares = v.pow(2).sum(-1)
        return squares.sqrt()  # CULPRIT


class Capsule(nn.Module):
    def __init__(self):
        super().__init__()
        self.pose = nn.Linear(6, 12, bias=False)
        self.length = Length()

    def forward(self, x):
        return self.length(self.pose(x).unflatten(-1, (3, 4)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 6, bias=False)
        self.capsules = nn.ModuleList([Capsule()])

    def forward(self, x):
        return checkpoint(self.capsules[0], torch.tanh(self.stem(x)), use_reentrant=False)


def step(model, batch):
    return F.multi_margin_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(23)
    model = Net().to(device)
    x = torch.randn(5, 6)
    x[2] = 0.0
    batch = {"x": x.to(device), "y": torch.tensor([0, 1, 2, 1, 0], device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward",
    "module": "capsules.0.length",
    "op": "sqrt",
    "line": "# CULPRIT",
    "samples": [2],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (squares + 1e-12).sqrt()",
    "note": "sqrt'(0)",
}
