"""A 1x1 convolution on channels-last input: the gradient has other strides than the weight."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)

    def forward(self, x):
        y = x.to(memory_format=torch.channels_last)
        return self.depth(y)  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.stages = nn.Sequential(Mixer())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(41)
    model = Net().to(device)
    batch = {"x": torch.randn(2, 3, 8, 8).to(device), "y": torch.tensor([0, 1]).to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "layout",
    "module": "stages.0.depth",
    "op": "convolution",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": [],
    "first_seen": "layout",
    "param": "stages.0.depth.weight",
    "grad_strides": (9, 1, 3, 1),
    "param_strides": (9, 9, 3, 1),
    "fix_line": "return self.depth(y.contiguous())",
    "note": "DDP bucket view strides",
}
