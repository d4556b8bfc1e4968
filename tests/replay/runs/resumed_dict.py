"""A VAE with named losses, two optimizers for one step, a layer that thaws, numpy noise; stopped at 40 and resumed from
30.

The second optimizer belongs to the prior; the reconstruction divides by the spread of a feature that is constant in one
batch.
"""

import os
import random

import numpy as np
import torch
from common import Log
from torch import nn

CONSTANT, THAW = 47, 12


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.mean = nn.Linear(4, 2)

    def forward(self, x):
        spread = x.std(0)
        z = (x - x.mean(0)) / spread  # CULPRIT
        return self.mean(torch.tanh(self.body(z)))


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Linear(2, 5)
        self.prior = nn.Linear(1, 2)


def batch(step):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
    if step == CONSTANT:
        x[:, 2] = 1.5
    return x


def losses(model, x):
    mean = model.encoder(x)
    z = mean + 0.1 * torch.from_numpy(np.random.randn(*mean.shape)).float()
    return {
        "recon": ((model.decoder(z) - x) ** 2).mean(),
        "kl": 0.01 * ((mean - model.prior(torch.ones(1, 1))) ** 2).mean(),
    }


def build():
    model = Vae()
    rest = [p for n, p in model.named_parameters() if not n.startswith("prior")]
    return model, {
        "main": torch.optim.AdamW(rest, lr=1e-2),
        "prior": torch.optim.SGD(model.prior.parameters(), lr=1e-1),
    }


def thaw(model, step):
    model.decoder.requires_grad_(step >= THAW)


def train(out):
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model, optimizers = build()
    log = Log(out, ["train/recon", "train/kl"])
    saved = None
    for start, stop in ((0, 40), (30, 55)):
        if saved is not None:
            state = torch.load(saved, weights_only=False)
            model.load_state_dict(state["model"])
            for name, optimizer in optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            np.random.set_state(state["numpy_rng"])
        for step in range(start, stop):
            thaw(model, step)
            named = losses(model, batch(step))
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            sum(named.values()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            for optimizer in optimizers.values():
                optimizer.step()
            log(step, *(v.item() for v in named.values()))
            if step % 10 == 9:
                path = os.path.join(out, f"ckpt_{step + 1}.pt")
                state = {
                    "model": model.state_dict(),
                    "optimizers": {k: o.state_dict() for k, o in optimizers.items()},
                    "iter": step + 1,
                }
                torch.save({**state, "numpy_rng": np.random.get_state()}, path)
                saved = path if step + 1 == 30 else saved


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizers = build()
    return TrainStep(model, optimizers, losses, batches=batch, clip=2.0, before_step=lambda step: thaw(model, step))
