"""Weight decay times learning rate above 2: weights flip and grow."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x):
        return self.f(x).squeeze(-1)


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(15)
    model = Net().to(device)
    batches = [{"x": torch.randn(8, 6, device=device), "y": torch.randn(8, device=device)} for _ in range(14)]
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=100.0),
        "step": step,
        "batch": batches[0],
        "batches": batches,
    }


TRUTH = {
    "phase": "optimizer",
    "module": None,
    "op": None,
    "line": None,
    "samples": None,
    "batch_level": True,
    "precision_only": True,
    "fixes": ["lower_lr", "fp64"],
    "first_seen": "loss",
    "step": 12,
}
