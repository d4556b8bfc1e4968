"""Forces by autograd.grad with create_graph: the derivative of a derivative fails, autograd hands out zeros without
memory."""

import torch
import torch.nn as nn


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(2, 3)

    def forward(self, x):
        return self.f(x).abs().pow(1.5).sum(-1)  # CULPRIT


def step(m, b):
    x = b["x"].clone().requires_grad_()
    (f,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    return (f - b["force"]).pow(2).mean()


def build(device):
    torch.manual_seed(19)
    m = Energy().to(device)
    with torch.no_grad():
        m.f.bias.zero_()
    x = torch.rand(6, 2, device=device)
    x[4] = 0
    return {
        "model": m,
        "optimizer": torch.optim.Adam(m.parameters(), lr=0.01),
        "step": step,
        "batch": {"x": x, "force": torch.randn(6, 2, device=device)},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "pow",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (self.f(x).abs() + 1e-6).pow(1.5).sum(-1)",
}
