"""Does what trainings do, part by part, and prints the events of each part as JSON: {part: [event, …]}."""

from __future__ import annotations

import json
import math
import sys

import torch

from postmortem.attach import boundaries
from postmortem.attach.boundaries.current import before_scaling
from postmortem.attach.observer import Observer

told: dict[str, list[str]] = {}
now: list[str] = []


class Recorder(Observer):
    """Notes each event as a word."""

    def batch(self, loader, index, batch):
        now.append(f"batch {index}")
        return batch

    def loss(self, loss):
        now.append(f"loss {before_scaling(loss).item():.3g}")

    def backward_done(self):
        now.append("backward")

    def read(self, loss):
        now.append("read")

    def abandoned(self, loss):
        now.append("abandoned")

    def dropping(self, optimizer):
        now.append("dropping")

    def before_update(self, optimizer):
        now.append(f"before {optimizer.param_groups[0]['params'][0].grad is not None}")

    def after_update(self, optimizer, skipped):
        now.append("skipped" if skipped else "after")

    def tick(self, number):
        now.append("tick")

    def raised(self, error):
        print(json.dumps({"raised": type(error).__name__, "frames": _files(error)}))


def _files(error: BaseException) -> list[str]:
    trace, found = error.__traceback__, []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return found


def part(name: str) -> None:
    """Begins a part."""
    global now
    now = told[name] = []


boundaries.install(Recorder())
torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
sgd = torch.optim.SGD([w], lr=0.1)

part("plain")
sgd.zero_grad()
(w.sum() * 1.0).backward()
sgd.step()

part("accumulation")
sgd.zero_grad()
for factor in (1.0, 2.0):
    (w.detach().sum() * 0 + w.sum() * 0 + factor).backward()
sgd.step()

part("loader")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4.0)), batch_size=2)
for (x,) in loader:
    sgd.zero_grad()
    (w.sum() * 0 + x.sum()).backward()
    sgd.step()

part("closure")
lbfgs = torch.optim.LBFGS([w], max_iter=1)


def closure():
    lbfgs.zero_grad()
    loss = w.square().sum()
    loss.backward()
    return loss


lbfgs.step(closure)

part("two optimizers")
v = torch.nn.Parameter(torch.tensor([1.0]))
other = torch.optim.Adam([v])
(w.sum() + v.sum()).backward()
sgd.step()
other.step()

part("an optimizer around another")


class Around(torch.optim.Optimizer):
    """Steps another optimizer, as wrappers do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


around = Around(sgd)
w.sum().backward()
around.step()

part("scaler")
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for factor in (1.0, math.inf):
    sgd.zero_grad()
    loss = w.square().sum() * 0 + 3.0
    scaler.scale(loss * 1.0 if math.isfinite(factor) else loss + w.sum() * 0).backward()
    if not math.isfinite(factor):
        w.grad.fill_(factor)
    scaler.step(sgd)
    scaler.update()
with torch.no_grad():
    w.copy_(torch.tensor([1.0, 2.0]))
told.pop("") if "" in told else None


def guarded(kind: str) -> None:
    """Five steps, of which the third has a loss that the program leaves out."""
    for step in range(5):
        sgd.zero_grad()
        loss = w.square().sum() * 0 + (math.nan if step == 2 else float(step))
        metric = w.sum() * math.nan  # a metric that is undefined all the time
        float(metric.item())
        if kind == "item" and not math.isfinite(loss.item()):
            continue
        if kind == "tensor" and not torch.isfinite(loss):
            continue
        loss.backward()
        sgd.step()


for kind in ("item", "tensor"):
    part(f"guarded by {kind}")
    guarded(kind)

part("gradients dropped")
w.sum().backward()
w.grad.fill_(math.nan)
sgd.zero_grad()

part("detached")
w.sum().detach().item()
torch.tensor(math.nan).item()

print(json.dumps(told))
sys.stdout.flush()
torch.utils.data.DataLoader([1])
next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1)), sampler=[7])))
