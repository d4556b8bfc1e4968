"""An explosion within three steps on heavy-tailed data: with the weights held still a batch leaves the level of the
first steps as well."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(39)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    tail = torch.distributions.StudentT(3.0)
    batches = [{"x": tail.sample((6, 6)).to(device), "y": tail.sample((6, 1)).to(device)} for _ in range(12)]
    return {
        "model": model.to(device),
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
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
    "step": 4,
    "note": "the second batch has 25 times the loss of the first, whatever the weights do",
}
