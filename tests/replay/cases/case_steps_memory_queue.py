"""Features of earlier batches are kept in a list; an empty batch leaves a zero row there, and the next step divides by
its norm."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4, bias=False)
        self.queue = []

    def forward(self, x):
        z = self.fc(x)
        bank = torch.stack(self.queue[-3:]) if self.queue else z.detach()
        self.queue.append(z.detach().mean(0))
        sim = z @ bank.t() / bank.norm(dim=1)  # CULPRIT
        return sim.mean(1)


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(3)
    model = Moco().to(device)
    batches = [{"x": torch.randn(6, 6, device=device), "y": torch.randn(6, device=device)} for _ in range(6)]
    batches[3]["x"].zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return {
        "model": model,
        "optimizer": optimizer,
        "step": step,
        "batch": batches[0],
        "batches": batches,
        "autocast": None,
        "scaler": False,
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
    "step": 4,
    "fix_line": "sim = z @ bank.t() / (bank.norm(dim=1) + 1e-6)",
    "note": "the state of the step is a list of tensors, no buffer: a rerun in another precision must cast it as well",
}
