"""What `postmortem.watch(level=…, budget=…)` costs: CPU time of a training with it, over that without.

    python benchmarks/levels.py [--size tiny|30m|all] [--rounds 9] [--steps N] [--budget SHARE]

`again` is the training without it in one more process: what two processes differ in by themselves, their memory above
all, is no cost of the watch. Each level has the budget that it is meant for (basic 1 %, advanced 5 %, extreme 15 %), or
the one that is given. Each way trains the same model in a process of its own; the processes take turns, so that a busy
machine slows all alike. CPU time
of the process, one thread. `ratio` is the median of the ratios of the rounds, in brackets the smallest and the largest;
`own` is the share of the plain steps that the watch itself measured; `watched` that of the steps in which it did not
rest; `copies` the CPU seconds that copies of the process have cost. A watch begins nothing that is not earned: within
the 19 steps of the 30M model no copy can be paid from 1 %. `--steps 20` shows what a longer training pays.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from attach import ask
from replay_cost import build, one_step

import postmortem
from postmortem.attach import boundaries
from postmortem.attach.paced import Paced

BUDGETS = {"basic": 0.01, "advanced": 0.05, "extreme": 0.15}
STEPS = {"tiny": 400, "30m": 2}
"""Steps in a round."""
WARM = {"tiny": 400, "30m": 1}
"""Steps before the first round: the allocator, and the first copy of the process."""


def work(way: str, size: str, budget: float | None, steps: int) -> None:
    """A process: one round for each line of stdin, its CPU seconds to stdout; last what the watch measured itself."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.chdir(folder)
        built = build(size, "cpu")
        if way in BUDGETS:
            options = {"level": way, "budget": budget or BUDGETS[way], "folder": folder, "captures": 0}
            stack.enter_context(postmortem.watch(built.model, built.optimizer, **options))
        for _ in range(WARM[size]):
            one_step(built)
        for _ in sys.stdin:
            began = time.process_time()
            for _ in range(steps):
                one_step(built)
            print(f"seconds {time.process_time() - began}", flush=True)
        watch = boundaries.current()
        if isinstance(watch, Paced):
            ticks = boundaries.listener.ticks
            own, copies = watch.whole.spent / watch.whole.earned, watch.standby.budget.spent
            print(f"own {own} watched {1 - watch.rested / ticks} copies {copies}", flush=True)


def measure(size: str, rounds: int, budget: float | None, steps: int) -> None:
    """Prints the table of one model."""
    workers = {}
    for way in ("plain", "again", *BUDGETS):
        command = [sys.executable, __file__, "--worker", way, "--size", size, "--steps", str(steps)]
        command += ["--budget", str(budget)] if budget is not None else []
        workers[way] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    times: dict[str, list[float]] = {way: [] for way in workers}
    try:
        for number in range(rounds):
            order = list(workers) if number % 2 else list(workers)[::-1]
            for way in order:
                value = ask(workers[way])
                if value is None:
                    sys.exit(f"{way}: ended with exit code {workers[way].wait()}")
                times[way].append(value / steps)
        plain = times.pop("plain")
        print(f"{size}: plain step {statistics.median(plain) * 1e3:.1f} ms of CPU time, {rounds} rounds of {steps}")
        for way, found in times.items():
            ratios = [a / b for a, b in zip(found, plain, strict=True)]
            if way == "again":
                spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"  {way:9}              ratio x{statistics.median(ratios):.3f} {spread}")
                continue
            own, _ = workers[way].communicate(timeout=60)
            _, share, _, watched, _, copies = own.split()
            print(
                f"  {way:9} budget {budget or BUDGETS[way]:.2f}  ratio x{statistics.median(ratios):.3f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})  own {float(share):.3f}  watched {float(watched):.2f}  "
                f"copies {float(copies):.2f} s",
                flush=True,
            )
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="all", choices=[*STEPS, "all"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, help="of a round; of the tiny model 400, of the 30M one 2 by itself")
    parser.add_argument("--budget", type=float, help="the same for each level")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.size, options.budget, options.steps)
        return 0
    for size in STEPS if options.size == "all" else [options.size]:
        measure(size, options.rounds, options.budget, options.steps or STEPS[size])
    return 0


if __name__ == "__main__":
    sys.exit(main())
