"""A centre kept in a numpy array between steps: an empty feature makes it 0/0, and the next step subtracts it."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = np.zeros(3, dtype=np.float32)

    def forward(self, x):
        y = x - torch.from_numpy(self.mean).to(x)
        with torch.no_grad():
            centre = (x * x).sum(0) / x.sum(0)  # CULPRIT
        self.mean = centre.cpu().numpy().astype(np.float32)
        return y


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(11)
    model = nn.Sequential(Centre(), nn.Linear(3, 2)).to(device)
    batches = [{"x": torch.randn(4, 3), "y": torch.randn(4, 2)} for _ in range(4)]
    batches[1]["x"][:, 2] = 0.0
    batches = [{k: v.to(device) for k, v in b.items()} for b in batches]
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "step": step,
        "batch": batches[0],
        "batches": batches,
    }


TRUTH = {
    "phase": "forward",
    "module": "0",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "step": 2,
    "fix_line": "centre = (x * x).sum(0) / (x.sum(0) + 1e-3)",
}
