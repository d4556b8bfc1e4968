"""A level kept for the next step is 0/0; the next step refuses what it makes of it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Meter(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = torch.ones(())

    def forward(self, x):
        y = x / self.level.to(x)
        if not torch.isfinite(y).all():
            raise ValueError("activations are not finite")
        self.level = x.detach().abs().amax() / x.detach().std()  # CULPRIT
        return y


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(11)
    model = nn.Sequential(Meter(), nn.Linear(3, 2)).to(device)
    batches = [{"x": torch.randn(4, 3), "y": torch.randn(4, 2)} for _ in range(5)]
    batches[2]["x"].zero_()
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
    "step": 3,
    "fix_line": "self.level = x.detach().abs().amax() / (x.detach().std() + 1e-3) + 0.1",
}
