"""A hand-written optimizer normalises each gradient by its own norm; a bias that nothing uses has gradient 0."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class UnitStep(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                direction = p.grad / p.grad.norm()  # CULPRIT
                p.sub_(group["lr"] * direction)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.gate = nn.Linear(4, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)) + 0.0 * self.gate(x)).squeeze(-1)


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(21)
    model = Net().to(device)
    batch = {"x": torch.randn(5, 4, device=device), "y": torch.randn(5, device=device)}
    return {
        "model": model,
        "optimizer": UnitStep(model.parameters(), lr=0.01),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "optimizer",
    "module": "gate",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "fix_line": "direction = p.grad / (p.grad.norm() + 1e-8)",
    "param": "gate.weight",
    "note": "0 / 0 inside the user's own optimizer",
}
