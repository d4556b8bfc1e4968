"""Sparse embedding gradients; a hand-written cosine divides by the length of an embedding that is exactly zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6, padding_idx=0, sparse=True)

    def forward(self, ids):
        v = self.table(ids)
        return v / v.norm(dim=-1, keepdim=True)  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lookup = Lookup()

    def forward(self, a, b):
        return (self.lookup(a) * self.lookup(b)).sum(-1)


def step(model, batch):
    return F.mse_loss(model(batch["a"], batch["b"]), batch["y"])


def build(device):
    torch.manual_seed(25)
    model = Net().to(device)
    batch = {"a": torch.tensor([3, 5, 9, 11]), "b": torch.tensor([4, 0, 8, 3]), "y": torch.rand(4)}
    batch = {k: v.to(device) for k, v in batch.items()}
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
    "module": "lookup",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [1],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "return v / (v.norm(dim=-1, keepdim=True) + 1e-8)",
    "note": "padding row is 0",
}
