"""A custom autograd Function whose forward divides by a range that is zero for a constant row."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MinMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        ctx.save_for_backward(high - low)
        return (x - low) / (high - low)  # CULPRIT

    @staticmethod
    def backward(ctx, grad):
        (span,) = ctx.saved_tensors
        return grad / span


class Scale(nn.Module):
    def forward(self, x):
        return MinMax.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(5, 5, bias=False)
        self.scale = Scale()
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.scale(self.emb(x)))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(30)
    model = Net().to(device)
    x = torch.randn(5, 5)
    x[1] = 0.0
    x[3] = 0.0
    batch = {"x": x.to(device), "y": torch.tensor([0, 1, 0, 1, 0], device=device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "scale",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [1, 3],
    "precision_only": False,
    "fixes": ["drop_sample"],
    "first_seen": "loss",
    "fix_line": "ctx.save_for_backward(high - low + 1e-6); return (x - low) / (high - low + 1e-6)",
    "note": "the backward of the same Function divides by the same zero: an eps in the forward line alone would not do",
    "no_fix_line": True,
}
