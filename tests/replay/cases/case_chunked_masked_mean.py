"""Loss summed over chunks inside the step; a chunk whose tokens are all padding."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(15, 8)
        self.ln = nn.LayerNorm(8)
        self.head = nn.Linear(8, 15)

    def forward(self, ids):
        return self.head(self.ln(self.tok(ids)))


def chunk_loss(model, ids, target, keep):
    nll = F.cross_entropy(model(ids).transpose(1, 2), target, reduction="none")
    return (nll * keep).sum() / keep.sum()  # CULPRIT


def step(model, batch):
    total = 0.0
    for ids, target, keep in zip(batch["ids"].split(2), batch["target"].split(2), batch["keep"].split(2), strict=False):
        total = total + chunk_loss(model, ids, target, keep) / 3
    return total


def build(device):
    torch.manual_seed(28)
    model = LM().to(device)
    keep = torch.ones(6, 4, device=device)
    keep[2:4] = 0
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {
            "ids": torch.randint(0, 15, (6, 4), device=device),
            "target": torch.randint(0, 15, (6, 4), device=device),
            "keep": keep,
        },
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [2, 3],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "return (nll * keep).sum() / keep.sum().clamp(min=1)",
    "joint": True,
}
