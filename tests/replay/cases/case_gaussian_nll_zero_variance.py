"""A variance that underflows: its logarithm and what is divided by it are infinite, and only the sum of both is NaN."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.site = nn.Embedding(6, 8)
        self.mu, self.raw = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, site):
        h = self.site(site)
        return self.mu(h), F.softplus(self.raw(h))


def nll(mu, var, y):
    return 0.5 * (torch.log(var) + (y - mu) ** 2 / var).mean()  # CULPRIT


def step(model, batch):
    mu, var = model(batch["site"])
    return nll(mu, var, batch["y"])


def build(device):
    torch.manual_seed(11)
    model = Heads()
    with torch.no_grad():
        model.raw.weight[0, 0], model.raw.weight[0, 1] = 1.0, 0.0
        model.raw.bias[0] = 0.0
        model.site.weight[4] = 0.0
        model.site.weight[4, 0] = -140.0
        model.raw.weight[0, 2:] = 0
    built = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "batch": {"site": torch.tensor([0, 1, 4, 2, 3]), "y": torch.randn(5, 2)},
    }
    built["model"].to(device)
    return {**built, "step": step, "batch": {k: v.to(device) for k, v in built["batch"].items()}}


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "log|div",
    "line": "# CULPRIT",
    "samples": [2],
    "precision_only": True,
    "fixes": ["drop_sample", "fp64", "eps"],
    "first_seen": "loss",
    "fix_line": "return 0.5 * (torch.log(var + 1e-6) + (y - mu) ** 2 / (var + 1e-6)).mean()",
}
