"""fp16 autocast; a matrix product of large features overflows, through a tanh that hides it from the loss's range."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        h = self.proj(x)
        gram = h @ h.transpose(1, 2)  # CULPRIT
        return gram - gram.amax(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = Energy()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.energy(x)).mean(1))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def build(device):
    torch.manual_seed(27)
    model = Net().to(device)
    x = torch.randn(4, 6, 16)
    x[1] *= 400.0
    batch = {"x": x.to(device), "y": torch.tensor([0, 1, 2, 0], device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": "fp16",
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "energy",
    "op": "matmul",
    "line": "# CULPRIT",
    "samples": [1],
    "precision_only": True,
    "fixes": ["fp32", "fp64", "bf16", "drop_sample"],
    "first_seen": "loss",
    "no_fix_line": True,
    "note": "inf is made by the product, NaN by inf - inf",
}
