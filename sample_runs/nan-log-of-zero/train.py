"""Tell eight instruments apart by how their notes fade. One clip of the data set is digital silence."""

import json

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {"steps": 200, "batch_size": 32, "lr": 3e-3, "save_every": 20, "seed": 1}


class Clips:
    """7680 notes of 256 samples each: noise that fades at one of eight rates."""

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(5)
        self.instrument = torch.randint(0, 8, (7680,), generator=g)
        rate = 0.5 + self.instrument[:, None] + 0.4 * torch.randn(7680, 1, generator=g)
        self.sound = torch.exp(-rate * torch.linspace(0, 1, 256)) * torch.randn(7680, 256, generator=g)
        self.sound[4242] = 0.0  # somebody pressed record and did not play
        self.order = torch.randperm(7680, generator=g)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.order[step * CONFIG["batch_size"] : (step + 1) * CONFIG["batch_size"]]
        return self.sound[rows], self.instrument[rows]


class LogEnergy(nn.Module):
    """Log energy of 16 frames of a clip, as every speech front end computes it."""

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        energy = sound.unfold(-1, 16, 16).pow(2).mean(-1)
        return torch.log(energy)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frontend = LogEnergy()
        self.body = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)
        )

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.body(self.frontend(sound))


def compute_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    sound, instrument = batch
    return F.cross_entropy(model(sound), instrument)


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"])
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CONFIG["steps"])


def main() -> None:
    from torch.utils.tensorboard import (
        SummaryWriter,
    )  # only the training writes logs: its recipe, replayed, needs torch alone

    torch.manual_seed(CONFIG["seed"])
    with open("config.json", "w") as file:
        json.dump(CONFIG, file)
    model, optimizer, scheduler = build()
    clips, writer = Clips(), SummaryWriter(".")
    for step in range(CONFIG["steps"]):
        loss = compute_loss(model, clips.batch(step))
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        writer.add_scalar("train/loss", loss, step)
        writer.add_scalar("train/grad_norm", grad_norm, step)
        writer.add_scalar("train/lr", scheduler.get_last_lr()[0], step)
        optimizer.step()
        scheduler.step()
        if (step + 1) % CONFIG["save_every"] == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
            torch.save(state | {"step": step, "rng": torch.get_rng_state()}, f"step_{step:06d}.pt")
    writer.close()


if __name__ == "__main__":
    main()
