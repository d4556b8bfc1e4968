"""Missing targets are masked after the square: the loss is finite, and 0 * NaN is the gradient."""

import torch
import torch.nn as nn


def build(device):
    torch.manual_seed(39)
    m = nn.Linear(3, 2).to(device)
    y = torch.randn(6, 2, device=device)
    y[1, 0] = float("nan")
    y[4] = float("nan")

    def step(m, b):
        e = (m(b["x"]) - b["y"]) ** 2
        ok = ~torch.isnan(b["y"])
        torch.log(-m(b["x"]).detach().abs())
        return e[ok].mean()

    return {
        "model": m,
        "optimizer": torch.optim.SGD(m.parameters(), lr=0.01),
        "step": step,
        "batch": {"x": torch.randn(6, 3, device=device), "y": y},
        "autocast": None,
        "scaler": False,
    }


TRUTH = {
    "phase": "backward|data",
    "module": None,
    "op": None,
    "line": None,
    "samples": [1, 4],
    "precision_only": False,
    "fixes": ["drop_sample", "sanitize_input"],
    "first_seen": "grad",
}
