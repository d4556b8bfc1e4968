"""Automatic gain in a Python number: a silent batch makes it infinite, and the next one fails over it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Agc(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 1.0

    def forward(self, x):
        y = x * self.gain
        want = torch.reciprocal(x.detach().abs().mean())  # CULPRIT
        self.gain = 0.9 * self.gain + 0.1 * want.item()
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.agc, self.head = Agc(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.agc(x))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(11)
    model = Net().to(device)
    batches = [{"x": torch.randn(5, 4), "y": torch.randint(0, 2, (5,))} for _ in range(5)]
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
    "module": "agc",
    "op": "reciprocal",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "step": 3,
    "fix_line": "want = torch.reciprocal(x.detach().abs().mean() + 1e-3)",
}
