"""VQ-VAE with an EMA codebook; a code that was never used has count 0 and decay 0."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Codebook(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.register_buffer("codes", torch.randn(k, d))

    def forward(self, z):
        idx = torch.cdist(z, self.codes).argmin(-1)
        q = self.codes[idx]
        with torch.no_grad():
            one = F.one_hot(idx, len(self.codes)).to(z.dtype)
            fresh = (one.T @ z) / one.sum(0)[:, None]  # CULPRIT
            self.codes.copy_(0.9 * self.codes + 0.1 * fresh)
        return z + (q - z).detach(), ((q.detach() - z) ** 2).mean()


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 4)
        self.book = Codebook(6, 3)

    def forward(self, x):
        q, commit = self.book(self.enc(x))
        return self.dec(q), commit


def step(model, batch):
    out, commit = model(batch["x"])
    return F.mse_loss(out, batch["x"]) + 0.25 * commit


def build(device):
    torch.manual_seed(0)
    model = VQ().to(device)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {"x": torch.randn(5, 4, device=device)},
    }


TRUTH = {
    "phase": "forward",
    "module": "book",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "fix_line": "fresh = (one.T @ z) / one.sum(0)[:, None].clamp(min=1)",
}
