"""Time-major sequences: the sample is dimension 1; one sensor reading is inf."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[-1]).squeeze(-1)


def step(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def build(device):
    torch.manual_seed(34)
    model = Net().to(device)
    x = torch.randn(7, 5, 3)
    x[3, 4, 1] = float("nan")
    batch = {"y": torch.randn(5).to(device), "x": x.to(device)}
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "step": step,
        "batch": batch,
        "autocast": None,
        "scaler": False,
        "sample_dim": {"x": 1},
    }


TRUTH = {
    "phase": "data",
    "module": None,
    "op": None,
    "line": None,
    "samples": [4],
    "precision_only": False,
    "fixes": ["drop_sample", "sanitize_input"],
    "first_seen": "loss",
    "note": "NaN in the batch",
}
