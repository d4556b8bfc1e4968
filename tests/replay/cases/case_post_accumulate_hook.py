"""A post-accumulate hook normalises every gradient; one layer's is zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def unit_gradient(p):
    p.grad.div_(p.grad.norm())  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 6)
        self.side = nn.Linear(5, 6)
        self.b = nn.Linear(6, 2)

    def forward(self, x, use):
        return self.b(torch.relu(self.a(x)) + use * self.side(x))


def step(model, batch):
    return F.cross_entropy(model(batch["x"], batch["use"]), batch["y"])


def build(device):
    torch.manual_seed(23)
    model = Net().to(device)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(unit_gradient)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "step": step,
        "batch": {
            "x": torch.randn(4, 5, device=device),
            "use": torch.zeros(4, 1, device=device),
            "y": torch.tensor([0, 1, 1, 0], device=device),
        },
    }


TRUTH = {
    "phase": "backward",
    "module": None,
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "grad",
    "fix_line": "p.grad.div_(p.grad.norm() + 1e-6)",
}
