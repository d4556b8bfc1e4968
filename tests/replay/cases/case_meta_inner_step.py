"""One inner step of meta-learning drives probabilities to 0: copies in place of a part of the batch cure it, leaving
that part out does not."""

import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 1)

    def forward(self, h, y):
        p = torch.sigmoid(self.lin(h)).squeeze(-1)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p))  # CULPRIT


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = Head()

    def forward(self, x, y):
        return self.head(self.body(x).tanh(), y)


def step(model, batch):
    params = dict(model.named_parameters())
    inner = torch.func.functional_call(model, params, (batch["xs"], batch["ys"])).mean()
    grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
    fast = {k: p - 20.0 * g for (k, p), g in zip(params.items(), grads, strict=True)}
    return torch.func.functional_call(model, fast, (batch["xq"], batch["yq"])).mean()


def build(device):
    torch.manual_seed(19)
    model = Learner().to(device)
    batch = {"xs": torch.randn(6, 4), "ys": torch.ones(6), "xq": torch.randn(6, 4), "yq": torch.ones(6)}
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "step": step,
        "batch": {k: v.to(device) for k, v in batch.items()},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "forward",
    "module": "head",
    "op": "log",
    "line": "# CULPRIT",
    "samples": None,
    "batch_level": True,
    "precision_only": True,
    "fixes": ["fp64", "eps"],
    "first_seen": "loss",
    "fix_line": "return -(y * torch.log(p + 1e-6) + (1 - y) * torch.log(1 - p + 1e-6))",
}
