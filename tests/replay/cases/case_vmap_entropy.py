"""Per-sample entropy under torch.vmap; one sample puts all probability on one class."""

import torch
import torch.nn as nn


class Entropy(nn.Module):
    def forward(self, p):
        return -(p * torch.log(p)).sum()  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.entropy = Entropy()

    def forward(self, x):
        p = torch.softmax(self.head(x), -1)
        return torch.vmap(self.entropy)(p)


def step(model, batch):
    return model(batch["x"]).mean()


def build(device):
    torch.manual_seed(29)
    model = Net().to(device)
    x = torch.randn(6, 4)
    x[0] *= 900.0
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": {"x": x.to(device)},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "entropy",
    "op": "log|mul",
    "line": "# CULPRIT",
    "samples": [0],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "return -(p * torch.log(p + 1e-9)).sum()",
    "note": "0 * log 0",
}
