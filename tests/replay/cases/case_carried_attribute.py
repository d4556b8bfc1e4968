"""The scale for the next step is kept in a plain attribute: a constant feature in one step makes the step after it
fail."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Rescale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = torch.ones(dim)

    def forward(self, x):
        y = x * self.scale.to(x)
        with torch.no_grad():
            self.scale = 1.0 / x.std(0)  # CULPRIT
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rescale, self.lin = Rescale(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.lin(self.rescale(x))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(11)
    model = Net().to(device)
    batches = [{"x": torch.randn(6, 4), "y": torch.randint(0, 3, (6,))} for _ in range(5)]
    batches[2]["x"][:, 2] = 1.0
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
    "module": "rescale",
    "op": "div|reciprocal",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "step": 3,
    "fix_line": "self.scale = 1.0 / (x.std(0) + 1e-3)",
}
