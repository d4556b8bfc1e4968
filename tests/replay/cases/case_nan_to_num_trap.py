"""nan_to_num hides the log of zero in the forward pass; its derivative is not hidden."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(5, 3))

    def forward(self, counts):
        return counts @ self.w


class TfIdf(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts, self.out = Counts(), nn.Linear(3, 2)

    def forward(self, c):
        logs = torch.log(self.counts(c))  # CULPRIT
        return self.out(torch.nan_to_num(logs, neginf=0.0))


def step(model, batch):
    return F.cross_entropy(model(batch["c"]), batch["y"])


def build(device):
    torch.manual_seed(31)
    model = TfIdf().to(device)
    c = torch.rand(6, 5, device=device)
    c[4] = 0
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {"c": c, "y": torch.tensor([0, 1, 1, 0, 1, 0], device=device)},
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "log",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "logs = torch.log(self.counts(c) + 1e-6)",
}
