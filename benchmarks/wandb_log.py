"""Measures reading a W&B transaction log against the SDK's own way, in rounds that alternate, on one machine.

    python benchmarks/wandb_log.py [--rows 20000] [--keys 20] [--rounds 3]

Writes an offline run with the SDK. `reader`: our reader, all numbers into columns, checksums verified. `sdk`: `leet
inspect --json` of the SDK's binary and json.loads of its lines. Prints CPU seconds, the median of the rounds, and the
median of the ratios of the rounds. Needs wandb 0.31 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import wandb

from postmortem.readers.wandb import WandbOffline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(folder, options.rows, options.keys)
        (log,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
        ours, theirs = [], []
        for _ in range(options.rounds):
            begin = time.process_time()
            points = len(WandbOffline.read(log).points)
            ours.append(time.process_time() - begin)
            theirs.append(sdk(Path(folder, "wandb")))
        print(f"{points} points, {log.stat().st_size / 1e6:.0f} MB: reader {statistics.median(ours):.3f} s, ", end="")
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        print(f"sdk {statistics.median(theirs):.3f} s, {ratio:.2f} times as long")


def write(folder: str, rows: int, keys: int) -> None:
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    value = random.Random(0).lognormvariate
    with wandb.init(mode="offline", dir=folder, settings=settings) as run:
        for step in range(rows):
            run.log({f"train/metric_{j}": value(0, 1) for j in range(keys)}, step=step)


def sdk(folder: Path) -> float:
    """CPU seconds of the SDK's binary and of parsing its output."""
    binary = Path(wandb.__file__).parent / "bin" / "wandb-core"
    before = os.times()
    command = [binary, "leet", "inspect", "-no-observability", "-json", folder]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    for line in output.splitlines():
        json.loads(line)
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


if __name__ == "__main__":
    main()
