"""Forked children of a process that computes: does one hang, and what does an attempt at a step cost?

    python benchmarks/forks.py [--forks 1000] [--threads 2] [--steps 12]

Forks a process whose OpenMP threads run, --forks times; each child does a forward and a backward pass with as many
threads and must give the losses of the parent. Prints hangs (20 s), wrong results, and the times of fork and child.
Then trains a small transformer under a standby up to a fault, lets the copy examine it, and prints the seconds of a
step, and how many steps 20 attempts take.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from postmortem.attach import boundaries
from postmortem.attach.flags import Fault, Flags, Tick
from postmortem.attach.observer import Observer
from postmortem.attach.standby import Standby
from postmortem.attach.standby.forks import end, fork, receive, send

_PATIENCE = 20.0


def forks(number: int) -> bool:
    """Whether no child hung or computed something else."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    hangs = wrong = 0
    forking, whole = [], []
    for i in range(number):
        x = torch.randn(256, 256)
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        reading, writing = os.pipe()
        began = time.perf_counter()
        child = fork()
        if child == 0:
            net.zero_grad()
            again = net(x).square().mean()
            again.backward()
            send(writing, again.item())
            os._exit(0)
        forking.append(time.perf_counter() - began)
        os.close(writing)
        try:
            wrong += receive(reading, _PATIENCE) != loss.item()
        except (TimeoutError, EOFError):
            hangs += 1
        os.close(reading)
        whole.append(time.perf_counter() - began)
        end(child)
        if (i + 1) % 100 == 0:
            print(f"  {i + 1} forks, {hangs} hangs", file=sys.stderr, flush=True)
    print(f"{number} forks with {torch.get_num_threads()} threads: {hangs} hangs, {wrong} wrong results")
    for name, seconds in (("fork", forking), ("fork and child", whole)):
        ms = sorted(1000 * s for s in seconds)
        print(f"  {name}: median {statistics.median(ms):.1f} ms, 99 % {ms[int(0.99 * len(ms))]:.1f}, most {ms[-1]:.1f}")
    return not hangs and not wrong


class Watch(Flags):
    """Takes a copy before the last tick, and has the fault examined."""

    def __init__(self, before: int) -> None:
        super().__init__(self.failed, lambda tick: None)
        self.before, self.standby = before, Standby()
        self.ends: list[float] = []
        self.found: dict[str, Any] | None = None

    def loss(self, loss: torch.Tensor) -> None:
        self.standby.loss(loss)
        super().loss(loss)

    def tick(self, number: int) -> None:
        super().tick(number)
        self.ends.append(time.perf_counter())
        if number == self.before:
            self.standby.take(number)

    def failed(self, fault: Fault, tick: Tick) -> None:
        boundaries.exchange(Observer())
        self.found = self.standby.investigate(fault)


def attempts(steps: int) -> None:
    """What the attempts at a failing step cost, in steps."""
    watch = Watch(steps - 2)
    boundaries.install(watch)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.Linear(32, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    head = nn.Linear(256, 8)
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-4)
    for step in range(steps):
        x = torch.randn(8, 128, 32)
        if step == steps - 1:
            x[3] = 0.0
        optimizer.zero_grad()
        loss = (head(net(x)).mean(2) / x.abs().sum(2)).square().mean()
        loss.backward()
        optimizer.step()
    assert watch.found is not None
    step_seconds = statistics.median(b - a for a, b in zip(watch.ends[:-2], watch.ends[1:-1], strict=True))
    made, seconds = watch.found["attempts"], watch.found["seconds"]
    culprit = watch.found["culprit"]
    print(f"step {1000 * step_seconds:.0f} ms; {made} attempts in {seconds:.2f} s, {culprit['phase']} {culprit['op']}")
    print(f"  20 attempts take {20 * seconds / made / step_seconds:.1f} steps")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    fine = forks(asked.forks)
    with suppress(KeyboardInterrupt):
        attempts(asked.steps)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
