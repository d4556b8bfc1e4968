"""exp overflows, the loss does not see it (1 / (1 + inf) = 0), its derivative inf * 0 does."""

import torch
import torch.nn as nn


class Squash(nn.Module):
    def forward(self, x):
        grown = torch.exp(x)  # CULPRIT
        return 1.0 / (1.0 + grown)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)
        self.squash = Squash()

    def forward(self, x):
        return self.squash(self.fc(x)).squeeze(-1)


def step(model, batch):
    return (model(batch["x"]) - batch["y"]).abs().mean()


def build(device):
    torch.manual_seed(39)
    model = Net().to(device)
    with torch.no_grad():
        model.fc.weight.fill_(1.0)
    x = torch.rand(5, 3)
    x[1] *= 150.0
    batch = {"x": x.to(device), "y": torch.rand(5).to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward|backward",
    "module": "squash",
    "op": "exp",
    "line": "# CULPRIT",
    "samples": [1],
    "precision_only": True,
    "fixes": ["drop_sample", "fp64"],
    "first_seen": "grad",
    "fix_line": "grown = torch.exp(x.clamp(max=30))",
    "note": "inf hidden in the forward pass",
}
