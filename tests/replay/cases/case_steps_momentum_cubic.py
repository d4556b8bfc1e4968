"""A quartic potential with a learning rate past the stability limit: a few quiet steps, then an explosion."""

import torch
import torch.nn as nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)


def step(model, batch):
    return (model(batch["x"]) ** 4).mean()


def build(device):
    torch.manual_seed(38)
    model = Potential().to(device)
    batches = [{"x": torch.randn(8, 4, device=device) * 2.0} for _ in range(14)]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.35, momentum=0.9),
        "step": step,
        "batch": batches[0],
        "batches": batches,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "optimizer",
    "module": None,
    "op": None,
    "line": None,
    "samples": None,
    "batch_level": True,
    "precision_only": False,
    "fixes": ["lower_lr", "clip_grad"],
    "first_seen": "loss",
    "step": 3,
    "note": "diverges",
}
