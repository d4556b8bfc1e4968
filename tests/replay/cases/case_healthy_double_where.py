"""The safe double where, a checkpointed block, gradient inf masked by a hook, and a growing but finite loss."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class SafeLog(nn.Module):
    def forward(self, x):
        ok = x > 0
        return torch.where(ok, torch.log(torch.where(ok, x, torch.ones_like(x))), torch.zeros_like(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.log = SafeLog()

    def forward(self, x):
        h = checkpoint(self.log, self.fc(x), use_reentrant=False)
        r = torch.relu(self.fc(x)).sqrt()
        r.register_hook(lambda g: g)
        r = r.detach()
        return (h + r).sum(-1)


def step(model, batch):
    return (1e4 * model(batch["x"])).pow(2).mean()


def build(device):
    torch.manual_seed(43)
    model = Net().to(device)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-9),
        "step": step,
        "batch": {"x": torch.randn(6, 4).to(device)},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {"phase": "none", "note": "nothing is wrong"}
