"""WGAN gradient penalty with a hand-written norm: the critic is dead for one sample."""

import torch
import torch.nn as nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 1))

    def forward(self, x):
        return self.f(x)


def penalty(critic, mix):
    mix = mix.detach().requires_grad_(True)
    (g,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
    return ((g.pow(2).sum(1).sqrt() - 1) ** 2).mean()  # CULPRIT


def step(model, batch):
    mix = batch["t"] * batch["real"] + (1 - batch["t"]) * batch["fake"]
    return model(batch["fake"]).mean() - model(batch["real"]).mean() + 10 * penalty(model, mix)


def build(device):
    torch.manual_seed(29)
    model = Critic().to(device)
    with torch.no_grad():
        model.f[0].weight.copy_(model.f[0].weight.abs())
    real, fake = torch.rand(6, 4, device=device), torch.rand(6, 4, device=device)
    real[5] = fake[5] = -30.0
    return {
        "model": model,
        "optimizer": torch.optim.RMSprop(model.parameters(), lr=1e-3),
        "step": step,
        "batch": {"real": real, "fake": fake, "t": torch.rand(6, 1, device=device)},
    }


TRUTH = {
    "phase": "backward",
    "module": "",
    "op": "sqrt",
    "line": "# CULPRIT",
    "samples": [5],
    "precision_only": False,
    "fixes": ["drop_sample", "eps"],
    "first_seen": "grad",
    "fix_line": "return (((g.pow(2).sum(1) + 1e-6).sqrt() - 1) ** 2).mean()",
}
