"""An average of the weights, kept by a hook of the optimizer, is divided by a count of zero."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).mean(-1))


class Averager:
    """Running mean of the weights, started after the warm-up."""

    def __init__(self, model, warmup):
        self.model, self.warmup, self.seen = model, warmup, 0
        self.total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        self.count = torch.zeros(())

    @torch.no_grad()
    def __call__(self, optimizer, args, kwargs):
        self.seen += 1
        if self.seen > self.warmup:
            self.count += 1
        for n, p in self.model.named_parameters():
            if self.seen > self.warmup:
                self.total[n] = self.total[n].to(p) + p
            mean = self.total[n].to(p) / self.count.to(p)  # CULPRIT
            p.lerp_(mean, 0.5)


def step(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(11)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_post_hook(Averager(model, warmup=1))
    built = {
        "model": model,
        "optimizer": optimizer,
        "batch": {"x": torch.randn(4, 2, 6), "y": torch.tensor([0, 1, 1, 0])},
    }
    built["model"].to(device)
    return {**built, "step": step, "batch": {k: v.to(device) for k, v in built["batch"].items()}}


TRUTH = {
    "phase": "optimizer",
    "module": "conv|head",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "fix_line": "mean = self.total[n].to(p) / self.count.to(p).clamp(min=1)",
}
