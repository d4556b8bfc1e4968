"""Small trainings whose losses stay finite and go wrong from one step on: a layer that grows, units that die."""

import torch
from common import Log, save
from torch import nn

torch.set_num_threads(1)
W = torch.randn(8, generator=torch.Generator().manual_seed(1))


def batch(step):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 + step))
    return {"x": x, "y": 2 * torch.tanh(x @ W)}


def loss_of(model, b):
    return ((model(b["x"]).squeeze(-1) - b["y"]) ** 2).mean()


def build(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    if kind == "dead":
        nn.init.constant_(model[2].bias, -100.0)
    groups = [{"params": part.parameters(), "lr": 0.02} for part in model if isinstance(part, nn.Linear)]
    return model, torch.optim.SGD(groups)


def before(kind, step, model, optimizer):
    if kind == "grows" and step >= 70:
        with torch.no_grad():
            model[2].weight.mul_(1.4)
    for group in optimizer.param_groups:
        group["lr"] = 2.0 if kind == "early" and step == 14 else 0.02


def train(out, kind):
    model, optimizer = build(kind)
    log = Log(out, ["loss"])
    for step in range(120):
        before(kind, step, model, optimizer)
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % 20 == 19:
            save(out, step, model, optimizer)


def grows(ctx):
    return _recipe("grows")


def dead(ctx):
    return _recipe("dead")


def early(ctx):
    return _recipe("early")


def _recipe(kind):
    from postmortem import TrainStep

    model, optimizer = build(kind)
    return TrainStep(
        model, optimizer, loss_of, batches=batch, before_step=lambda step: before(kind, step, model, optimizer)
    )
