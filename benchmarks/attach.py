"""What `postmortem run` costs at each level, beside plain training, torch's detect_anomaly and two other packages.

    python benchmarks/attach.py [--size tiny|30m|all] [--rounds N] [--quick]

Each way trains the same model in a process of its own; the processes take turns, so that a busy machine slows all of
them alike. CPU time of the process, one thread. `whole` is the time of all rounds over that of plain: what is done in
some steps only is in it. `median` is that of the rounds. The allowances that come in addition once are set to 0.
`plain again` shows how far two processes without any watch are apart. torch-audit and torchmortem are measured where
they are installed (`pip install torch-audit torchmortem`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from replay_cost import build, one_step

LEVELS = ("basic, no copies", "basic", "advanced", "extreme")
WAYS = ("plain", "plain again", *LEVELS, "detect_anomaly", "torch-audit", "torchmortem")
OTHERS = {"torch-audit": "torch_audit", "torchmortem": "torchmortem"}
STEPS = {"tiny": 25, "30m": 1}
"""Steps in a round."""


def watched(way: str, folder: Path) -> None:
    """Attaches as a process of `postmortem run` does."""
    from postmortem.attach.levels import watch
    from postmortem.attach.start import attach

    watch.ALLOWANCES = dict.fromkeys(watch.ALLOWANCES, 0.0)
    level, _, copies = way.partition(", ")
    plan = {"mode": "run", "fix": True, "on_fault": "continue", "level": level, "fork": not copies}
    (folder / "plan.json").write_text(json.dumps({**plan, "history": str(folder / "history")}))
    attach(str(folder))


def work(way: str, size: str) -> None:
    """A process: one round for each line of stdin, its CPU seconds to stdout."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if way in LEVELS:
            watched(way, Path(folder))
        built = build(size, "cpu")
        step: Any = lambda: one_step(built)  # noqa: E731
        if way == "torch-audit":
            from torch_audit import autopatch

            autopatch(built.model, optimizer=built.optimizer, every_n_steps=1, reporters=[])
        elif way == "torchmortem":
            from torchmortem import Autopsy

            autopsy = Autopsy(built.model, optimizer=built.optimizer).__enter__()

            def step() -> None:
                built.optimizer.zero_grad()
                loss = built.step(built.model, built.batch)
                loss.backward()
                built.optimizer.step()
                autopsy.step(loss=loss.item())

        elif way == "detect_anomaly":
            torch.autograd.set_detect_anomaly(True, check_nan=True)
        for _ in sys.stdin:
            began = time.process_time()
            for _ in range(STEPS[size]):
                step()
            print(f"seconds {time.process_time() - began}", flush=True)


def measure(size: str, rounds: int) -> None:
    """Prints the table of one model."""
    ways = [w for w in WAYS if w not in OTHERS or importlib.util.find_spec(OTHERS[w]) is not None]
    workers = {}
    for way in ways:
        command = [sys.executable, __file__, "--worker", way, "--size", size]
        workers[way] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-2, rounds):
        for way in list(workers):
            value = ask(workers[way])
            if value is None:
                print(f"  {way}: ended with exit code {workers.pop(way).wait()}", flush=True)
                del times[way]
            elif number >= 0:
                times[way].append(value / STEPS[size])
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    plain = times["plain"]
    print(f"{size}: plain step {statistics.median(plain) * 1e3:.1f} ms of CPU time, {rounds} rounds of {STEPS[size]}")
    for way, found in times.items():
        whole, median = sum(found) / sum(plain), statistics.median(found) / statistics.median(plain)
        print(f"  {way:18} whole x{whole:.3f}   median x{median:.3f}", flush=True)
    for way in set(WAYS) - set(ways):
        print(f"  {way}: not installed")


def ask(worker: subprocess.Popen[str]) -> float | None:
    """One round; None if the process has ended."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write("\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    for line in worker.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="all", choices=[*STEPS, "all"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="6 rounds")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.size)
        return 0
    for size in STEPS if options.size == "all" else [options.size]:
        measure(size, 6 if options.quick else options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
