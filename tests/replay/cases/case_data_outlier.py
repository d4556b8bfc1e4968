"""A finite value of 3e25 in one row makes a square overflow."""

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)


def step(model, batch):
    return (model(batch["x"]) - batch["y"]).pow(2).mean()


def build(device):
    torch.manual_seed(35)
    model = Net().to(device)
    x = torch.randn(6, 4)
    x[2, 1] = 3e25
    batch = {"x": x.to(device), "y": torch.randn(6, 2).to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-6),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "data",
    "module": None,
    "op": None,
    "line": None,
    "samples": [2],
    "precision_only": True,
    "fixes": ["drop_sample", "sanitize_input", "fp64"],
    "first_seen": "loss",
    "finite_outlier": True,
    "note": "a finite outlier alone makes the overflow",
}
