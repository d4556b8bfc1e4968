"""Adam in one fused kernel, with eps=0; one input feature is always zero, so a column of the weights has no
gradient."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.enc(x)))


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(3)
    model = Net().to(device)
    batch = {"x": torch.randn(6, 6, device=device), "y": torch.randn(6, 3, device=device)}
    batch["x"][:, 2] = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.0, fused=True)
    return {"model": model, "optimizer": optimizer, "step": step, "batch": batch, "autocast": None, "scaler": False}


TRUTH = {
    "phase": "optimizer",
    "module": "enc",
    "op": "div",
    "line": None,
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "param": "enc.weight",
    "note": "0 / (sqrt(0) + 0) inside one kernel: the operator shows when the update is made step by step",
}
