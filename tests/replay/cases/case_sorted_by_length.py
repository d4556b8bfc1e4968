"""The rows at the operator are in order of length, not in the order of the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Enc(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(12, 4)
        self.o = nn.Linear(4, 2)

    def forward(self, ids, n):
        order = n.argsort(descending=True)
        h = self.e(ids[order]) * (torch.arange(ids.shape[1], device=ids.device)[None] < n[order][:, None])[..., None]
        h = h.sum(1) / n[order][:, None]  # CULPRIT
        back = order.argsort()
        return self.o(h[back])


def build(device):
    torch.manual_seed(3)
    m = Enc().to(device)
    n = torch.tensor([2, 0, 4, 1, 3, 5, 0, 2], device=device)
    return {
        "model": m,
        "optimizer": torch.optim.SGD(m.parameters(), lr=0.1),
        "step": lambda m, b: F.cross_entropy(m(b["ids"], b["n"]), b["y"]),
        "batch": {
            "ids": torch.randint(0, 12, (8, 5), device=device),
            "n": n,
            "y": torch.tensor([0, 1, 0, 1, 1, 0, 0, 1], device=device),
        },
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "div",
    "line": "# CULPRIT",
    "samples": [1, 6],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "loss",
    "fix_line": "h = h.sum(1) / n[order][:, None].clamp(min=1)",
}
