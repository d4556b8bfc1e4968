"""The scale of the targets travels through a Python float: one clip is shorter than two frames."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Standardise(nn.Module):
    def forward(self, x):
        rows = []
        for row in x:
            spread = (row - row.mean()).abs().max()
            gain = (1.0 / spread).item()  # CULPRIT
            rows.append(row * gain)
        return torch.stack(rows)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.standardise = Standardise()
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(self.standardise(x))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(32)
    model = Net().to(device)
    x = torch.randn(4, 6)
    x[2] = 0.25
    batch = {"x": x.to(device), "y": torch.tensor([0, 1, 0, 1], device=device)}
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
    "module": "standardise",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [2],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "gain = (1.0 / (spread + 1e-5)).item()",
    "note": "1/0 read by item()",
}
