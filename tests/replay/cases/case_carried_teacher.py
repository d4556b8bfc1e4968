"""A teacher outside the model is moved by weights that sum to zero; only the next step asks it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Step:
    def __init__(self, teacher):
        self.teacher = teacher.requires_grad_(False)

    def __call__(self, model, batch):
        loss = F.kl_div(model(batch["x"]).log_softmax(-1), self.teacher(batch["x"]).softmax(-1), reduction="batchmean")
        with torch.no_grad():
            share = (batch["w"] / batch["w"].sum()).amax()  # CULPRIT
            for p, q in zip(self.teacher.parameters(), model.parameters(), strict=True):
                p.lerp_(q, share)
        return loss


def build(device):
    torch.manual_seed(11)
    model, teacher = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
    batches = [{"x": torch.randn(6, 4, device=device), "w": torch.rand(6, device=device)} for _ in range(9)]
    batches[5]["w"].zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "step": Step(teacher).__call__,
        "batch": batches[0],
        "batches": batches,
    }


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "loss",
    "step": 6,
    "fix_line": 'share = (batch["w"] / (batch["w"].sum() + 1e-3)).amax()',
}
