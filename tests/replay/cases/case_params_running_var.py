"""A batch norm in eval mode with a NaN in its running variance."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        return self.out(F.relu(self.stem(x)))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(36)
    model = Net().to(device)
    model.stem[1].eval()
    model.stem[1].running_var[3] = float("nan")
    batch = {"x": torch.randn(5, 4).to(device), "y": torch.randint(0, 2, (5,)).to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "parameters",
    "module": "stem.1",
    "op": None,
    "line": None,
    "samples": None,
    "precision_only": False,
    "fixes": [],
    "first_seen": "loss",
    "param": "stem.1.running_var",
    "note": "the state is NaN before the step",
}
