"""One graph, so that a step is an epoch: log and checkpoints count epochs. Edges are dropped at random; a node may be
left without any."""

import json
import os

import torch
from torch import nn

torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
N = 40
DST, SRC = torch.arange(N).repeat_interleave(4), torch.randint(0, N, (4 * N,), generator=G)
X = torch.randn(N, 3, generator=G)


class Mean(nn.Module):
    def forward(self, x, src, dst):
        total = torch.zeros_like(x).index_add(0, dst, x[src])
        count = x.new_zeros(N).index_add(0, dst, x.new_ones(len(dst)))
        return total / count[:, None]  # CULPRIT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.out = Mean(), nn.Linear(3, 1)

    def forward(self, x):
        keep = torch.rand(len(SRC)) > 0.17
        return self.out(self.mean(x, SRC[keep].to(x.device), DST[keep].to(x.device))).squeeze(-1)


def loss_of(model, x):
    x = x.to(model.out.weight.device)
    return ((model(x) - x[:, 0]) ** 2).mean()


def train(out, device="cpu"):
    torch.manual_seed(6)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    os.makedirs(os.path.join(out, "checkpoints"))
    with open(os.path.join(out, "history.jsonl"), "w") as log:
        for epoch in range(1, 61):
            loss = loss_of(model, X)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(json.dumps({"epoch": epoch, "train_loss": loss.item()}) + "\n")
            if epoch % 5 == 0:
                state = {
                    "epoch": epoch,
                    "model_state_dict": model.state_dict(),
                    "optimizer_state_dict": optimizer.state_dict(),
                }
                torch.save(
                    {**state, "rng": torch.get_rng_state()}, os.path.join(out, "checkpoints", f"epoch_{epoch:03d}.pt")
                )


def recipe(ctx):
    from postmortem import TrainStep

    model = Net().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    return TrainStep(
        model, optimizer, loss_of, batches=lambda epoch: X, first_step=ctx.state["epoch"] + 1, divisible=False
    )
