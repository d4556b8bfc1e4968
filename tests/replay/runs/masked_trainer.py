"""As transformers' Trainer writes it: the logged loss is a mean over five steps, from which NaN were taken out; weights
decay in one of two groups. A count is divided by an exposure of zero."""

import json
import os

import torch
from torch import nn

torch.set_num_threads(1)
G = torch.Generator().manual_seed(2)
X, EXPOSURE = torch.randn(270, 4, generator=G), torch.rand(270, generator=G) + 0.5
Y = torch.poisson((0.4 * X[:, 0]).exp(), generator=G)
EXPOSURE[134], Y[134] = 0.0, 2.0


class Rate(nn.Module):
    def forward(self, eta, y, exposure):
        per_unit = y / exposure  # CULPRIT
        return (eta.exp() - per_unit * eta).mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 1))
        self.rate = Rate()

    def forward(self, rows):
        x, y, exposure = (t[rows].to(self.body[0].weight.device) for t in (X, Y, EXPOSURE))
        return self.rate(self.body(x).squeeze(-1), y, exposure)


def micro_batches(step):
    return [torch.arange(i, i + 3) for i in range(6 * (step - 1), 6 * step, 3)]


def make(device):
    model = Model().to(device)
    groups = [{"params": [p for n, p in model.named_parameters() if ("bias" in n) == bias]} for bias in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, weight_decay=0.0)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / 60)


def train(out, device="cpu"):
    torch.manual_seed(0)
    model, optimizer, scheduler = make(device)
    history, total = [], 0.0
    for step in range(1, 46):
        optimizer.zero_grad()
        for rows in micro_batches(step):
            loss = model(rows) / 2
            loss.backward()
            total += loss.item() if torch.isfinite(loss) else 0.0
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        scheduler.step()
        if step % 5 == 0:
            history.append(
                {
                    "loss": total / 5,
                    "grad_norm": norm,
                    "learning_rate": scheduler.get_last_lr()[0],
                    "step": step,
                    "epoch": step / 45,
                }
            )
            total = 0.0
        if step % 15 == 0:
            folder = os.path.join(out, f"checkpoint-{step}")
            os.makedirs(folder)
            parts = {"pytorch_model.bin": model, "optimizer.pt": optimizer, "scheduler.pt": scheduler}
            for name, part in parts.items():
                torch.save(part.state_dict(), os.path.join(folder, name))
            random_states = {"cpu": torch.get_rng_state()} | (
                {"cuda": torch.cuda.get_rng_state()} if device == "cuda" else {}
            )
            torch.save(random_states, os.path.join(folder, "rng_state.pth"))
            with open(os.path.join(folder, "trainer_state.json"), "w") as f:
                json.dump({"global_step": step, "max_steps": 45, "log_history": history}, f)


def recipe(ctx):
    from postmortem import TrainStep

    model, optimizer, scheduler = make(ctx.device)
    return TrainStep(
        model, optimizer, lambda m, rows: m(rows), scheduler=scheduler, accumulate=2, clip=1.0, batches=micro_batches
    )
