"""fp16 with a GradScaler that starts far too high: only the scale is at fault."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 32)
        self.b = nn.Linear(32, 3)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def build(device):
    torch.manual_seed(28)
    model = Net().to(device)
    batch = {"x": torch.randn(6, 8, device=device), "y": torch.randint(0, 3, (6,), device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": "fp16",
        "scaler": True,
        "init_scale": 2.0**24,
    }


TRUTH = {
    "phase": "scaler",
    "module": None,
    "op": None,
    "line": None,
    "samples": None,
    "precision_only": True,
    "fixes": ["loss_scale", "fp32", "fp64", "bf16"],
    "first_seen": "grad",
    "note": "scaled gradients pass 65504",
}
