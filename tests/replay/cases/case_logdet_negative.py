"""log-determinants of matrices of which one has a negative determinant: torch says NaN inside its own code."""

import torch
import torch.nn as nn


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 9)

    def forward(self, x):
        a = self.w(x).view(-1, 3, 3) * 0.1 + torch.diag_embed(x)
        return torch.logdet(a)  # CULPRIT


def build(device):
    torch.manual_seed(3)
    m = Flow().to(device)
    x = torch.rand(6, 3, device=device) + 1
    x[4, 0] = -2.0
    return {
        "model": m,
        "optimizer": torch.optim.SGD(m.parameters(), lr=0.01),
        "step": lambda m, b: -m(b["x"]).mean(),
        "batch": {"x": x},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "logdet|log|linalg_slogdet",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample"],
    "first_seen": "loss",
    "fix_line": "return torch.linalg.slogdet(a)[1]",
}
