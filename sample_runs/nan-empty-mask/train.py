"""Tell three kinds of messages apart by the mean of their words. One message of the data set is empty."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=180)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--resume", help="go on from this checkpoint")
args = parser.parse_args()


def messages() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """8192 messages of up to 20 words out of 150, each kind with words of its own; 0 is padding."""
    g = torch.Generator().manual_seed(7)
    kind = torch.randint(0, 3, (8192,), generator=g)
    words = 1 + (50 * kind[:, None] + (15 * torch.randn(8192, 20, generator=g)).long()) % 150
    length = torch.randint(3, 21, (8192,), generator=g)
    length[299] = 0  # somebody pressed send and had not typed
    return words * (torch.arange(20) < length[:, None]), kind, torch.randperm(8192, generator=g)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(151, 16, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = (words != 0).float()
        mean = (self.embed(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(mean)


torch.manual_seed(1)
words, kind, order = messages()
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
first = 1
if args.resume:
    saved = torch.load(args.resume)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    first = saved["step"] + 1

for step in range(first, args.steps + 1):
    rows = order[(step - 1) * 32 : step * 32]
    loss = F.cross_entropy(model(words[rows]), kind[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} | loss {loss.item():.6f}", flush=True)
    if step % 100 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        torch.save(state | {"step": step}, f"ckpt_{step}.pt")
