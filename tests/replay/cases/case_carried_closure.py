"""The level of the targets is kept in a dict of the step's closure: 0/0 in one step, felt in the next."""

import torch
import torch.nn as nn


def build(device):
    torch.manual_seed(11)
    model = nn.Linear(4, 1).to(device)
    state = {"level": torch.ones((), device=device)}

    def step(model, batch):
        error = (model(batch["x"]).squeeze(-1) - batch["y"]) / state["level"].to(batch["x"])
        state["level"] = batch["y"].std() / batch["y"].abs().mean()  # CULPRIT
        return error.pow(2).mean()

    batches = [{"x": torch.randn(6, 4, device=device), "y": 3 * torch.randn(6, device=device)} for _ in range(6)]
    batches[3]["y"].zero_()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "step": step,
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
    "step": 4,
    "fix_line": 'state["level"] = batch["y"].std() / (batch["y"].abs().mean() + 1e-3) + 0.1',
}
