"""Several steps; in the third one a document without words arrives and its term frequencies are 0/0."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TermFrequency(nn.Module):
    def forward(self, counts):
        return counts / counts.sum(-1, keepdim=True)  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tf = TermFrequency()
        self.fc = nn.Sequential(nn.Linear(10, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, counts):
        return self.fc(self.tf(counts))


def step(model, batch):
    return F.cross_entropy(model(batch["counts"]), batch["y"])


def build(device):
    torch.manual_seed(31)
    model = Net().to(device)
    batches = [{"counts": torch.randint(0, 4, (6, 10)).float(), "y": torch.randint(0, 3, (6,))} for _ in range(4)]
    batches[2]["counts"][5] = 0.0
    batches = [{k: v.to(device) for k, v in b.items()} for b in batches]
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "step": step,
        "batch": batches[0],
        "batches": batches,
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "tf",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [5],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "step": 2,
    "rng": True,
    "fix_line": "return counts / counts.sum(-1, keepdim=True).clamp(min=1)",
    "note": "empty document",
}
