"""RMSprop with eps=0; a ReLU that never opens leaves its incoming weights without gradient."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 5)
        self.down = nn.Linear(5, 2)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(22)
    model = Net().to(device)
    with torch.no_grad():
        model.up.bias[2] = -100.0
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=0.0)
    batch = {"x": torch.randn(6, 3, device=device), "y": torch.randint(0, 2, (6,), device=device)}
    return {"model": model, "optimizer": opt, "step": step, "batch": batch, "autocast": None, "scaler": False}


TRUTH = {
    "phase": "optimizer",
    "module": "up|down",
    "op": "div",
    "line": None,
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "param": "up.weight",
    "note": "0 / sqrt(0)",
}
