"""Targets are standardised over the batch; all of them are equal."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        return self.fc(x).squeeze(-1)


def standardised(y):
    return (y - y.mean()) / y.std()  # CULPRIT


def step(model, batch):
    return F.mse_loss(model(batch["x"]), standardised(batch["y"]))


def build(device):
    torch.manual_seed(37)
    model = Net().to(device)
    batch = {"x": torch.randn(6, 3).to(device), "y": torch.full((6,), 2.0).to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "batch_level": True,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "fix_line": "return (y - y.mean()) / (y.std() + 1e-6)",
    "note": "0/0 for the batch as a whole",
}
