"""Pairwise distances by hand: two rows of the batch are equal."""

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


def spread(z):
    i, j = torch.triu_indices(len(z), len(z), 1, device=z.device)
    squared = ((z[i] - z[j]) ** 2).sum(-1)
    return squared.sqrt().mean()  # CULPRIT


def step(model, batch):
    return -spread(model(batch["x"]))


def build(device):
    torch.manual_seed(40)
    model = Net().to(device)
    x = torch.randn(6, 4)
    x[4] = x[1]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": {"x": x.to(device)},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "sqrt",
    "line": "# CULPRIT",
    "samples": [1, 4],
    "joint": True,
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (squared + 1e-12).sqrt().mean()",
    "note": "only the pair fails",
}
