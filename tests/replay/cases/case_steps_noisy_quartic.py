"""A quartic error that explodes in its third step; the batches alone move the loss tenfold, so few quiet steps tell its
level."""

import torch
import torch.nn as nn


class Well(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        return self.out(torch.tanh(x) + self.fc(x)).squeeze(-1)


def step(model, batch):
    return (model(batch["x"]) - batch["y"]).pow(4).mean()


def build(device):
    torch.manual_seed(11)
    model = Well()
    batches = [{"x": (2 * torch.randn(6, 6)).to(device), "y": (3 * torch.randn(6)).to(device)} for _ in range(12)]
    return {
        "model": model.to(device),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
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
    "note": "with the weights held still the fourth batch has ten times the loss of the first",
}
