"""A healthy run that looks suspicious: a GAN on eight points of a ring. Its losses swing for ever and mean little. Logs
JSON lines."""

import json
import math

import torch
from torch import nn

torch.manual_seed(0)


def net(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, outputs)
    )


generator, critic = net(4, 2), net(2, 1)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=3e-3)
optimizer_d = torch.optim.Adam(critic.parameters(), lr=3e-3)
bce = nn.functional.binary_cross_entropy_with_logits
yes, no = torch.ones(64, 1), torch.zeros(64, 1)

with open("train.log.json", "w") as log:
    for step in range(800):
        angle = 2 * math.pi * torch.randint(0, 8, (64,)) / 8
        real = 2 * torch.stack([angle.cos(), angle.sin()], -1) + 0.02 * torch.randn(64, 2)
        fake = generator(torch.randn(64, 4))
        d_loss = bce(critic(real), yes) + bce(critic(fake.detach()), no)
        optimizer_d.zero_grad()
        d_loss.backward()
        optimizer_d.step()
        g_loss = bce(critic(fake), yes)
        optimizer_g.zero_grad()
        g_loss.backward()
        optimizer_g.step()
        print(
            json.dumps({"step": step, "d_loss": round(d_loss.item(), 5), "g_loss": round(g_loss.item(), 5)}), file=log
        )
