"""functional_call with tied weights; the loss takes the inverse of a softplus."""

import torch
import torch.nn as nn
from torch.func import functional_call


class TiedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 6, bias=False)
        self.dec = nn.Linear(6, 6, bias=False)
        self.dec.weight = self.enc.weight

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def inverse_softplus(y):
    return torch.log(torch.expm1(y))  # CULPRIT


def step(model, batch):
    params = dict(model.named_parameters())
    out = functional_call(model, params, (batch["x"],), tie_weights=True)
    return (inverse_softplus(batch["rate"]) - out).pow(2).mean()


def build(device):
    torch.manual_seed(33)
    model = TiedAutoencoder().to(device)
    rate = torch.rand(5, 6) + 0.1
    rate[3, 2] = 0.0
    batch = {"x": torch.randn(5, 6).to(device), "rate": rate.to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "log",
    "line": "# CULPRIT",
    "samples": [3],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "return torch.log(torch.expm1(y).clamp(min=1e-6))",
    "note": "log 0",
}
