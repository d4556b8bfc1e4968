"""An optimizer that steps by the ratio of norms of the step before: no gradient in one step, 0 times inf in the
next."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class DelayedTrust(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                ratio = state.get("ratio", torch.ones((), device=p.device, dtype=p.dtype))
                p.sub_(group["lr"] * ratio * p.grad)
                state["ratio"] = 0.01 * p.norm() / p.grad.norm()  # CULPRIT


def step(model, batch):
    return F.mse_loss(model(batch["x"]) * batch["w"], batch["y"] * batch["w"])


def build(device):
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
    batches = [{"x": torch.randn(5, 4), "y": torch.randn(5, 1), "w": torch.ones(5, 1)} for _ in range(5)]
    batches[1]["w"].zero_()
    batches = [{k: v.to(device) for k, v in b.items()} for b in batches]
    return {
        "model": model,
        "optimizer": DelayedTrust(model.parameters()),
        "step": step,
        "batch": batches[0],
        "batches": batches,
    }


TRUTH = {
    "phase": "optimizer",
    "module": "0|2",
    "op": "div",
    "line": "# CULPRIT",
    "samples": None,
    "precision_only": False,
    "fixes": ["eps"],
    "first_seen": "param",
    "step": 2,
    "fix_line": 'state["ratio"] = 0.01 * p.norm() / (p.grad.norm() + 1e-3)',
}
