"""Cox loss: the risks are summed in the order of time, so that one overflow spreads over samples that are sorted
otherwise."""

import torch
import torch.nn as nn


class Hazard(nn.Module):
    def __init__(self):
        super().__init__()
        self.clinic = nn.Embedding(5, 6)
        self.lin = nn.Linear(6, 1)

    def forward(self, c):
        return self.lin(self.clinic(c)).squeeze(-1)


def cox(risk, time, event):
    order = time.argsort(descending=True)
    risk, event = risk[order], event[order]
    at_risk = torch.cumsum(torch.exp(risk), 0)  # CULPRIT
    return -((risk - torch.log(at_risk)) * event).sum() / event.sum()


def step(model, batch):
    return cox(model(batch["clinic"]), batch["time"], batch["event"])


def build(device):
    torch.manual_seed(11)
    model = Hazard()
    with torch.no_grad():
        w = model.lin.weight[0]
        model.clinic.weight[2] = 110.0 * w / w.pow(2).sum()
    built = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "batch": {
            "clinic": torch.tensor([0, 1, 3, 4, 2, 0]),
            "time": torch.tensor([3.0, 1.0, 9.0, 2.0, 5.0, 4.0]),
            "event": torch.tensor([1.0, 1, 0, 1, 1, 1]),
        },
    }
    built["model"].to(device)
    return {**built, "step": step, "batch": {k: v.to(device) for k, v in built["batch"].items()}}


TRUTH = {
    "phase": "forward",
    "module": "",
    "op": "exp",
    "line": "# CULPRIT",
    "samples": [4],
    "precision_only": True,
    "fixes": ["drop_sample", "fp64", "eps"],
    "first_seen": "loss",
    "fix_line": "at_risk = torch.cumsum(torch.exp(risk.clamp(max=30)), 0)",
}
