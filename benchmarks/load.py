"""Scans of much: CPU seconds and peak memory of `postmortem scan` on made folders of an extreme size.

    python benchmarks/load.py [--only text,lines,…] [--scale 1.0] [--keep DIR]

- `text`: one log of 1 GB, dense with numbers. `lines`: 10 million lines of which no two have the same words.
- `tags`: one event file with 100,000 tags. `runs`: 20,000 runs of one small CSV file each.
- `events`: one log with 5 million lines that report something (warnings, tracebacks).
- `files`: 100,000 files of which 100 are logs, in 1,000 folders. `eventfile`: an event file of 5 GB, mostly histograms.

Each is scanned once, without the cache, in a process of its own. Prints its CPU seconds with those of its children, the
time by the clock, the peak of its own memory, what it printed first, and its exit code. `points` is what the memory of
the points alone takes, 29 bytes each, where the shape has many.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import text as logs
from readers import LAYERS, blobs_between, names, steps_of, write
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

SCAN = """
import re, sys
from pathlib import Path
from postmortem.cli.main import main
try:
    code = main()
except SystemExit as stopped:
    code = stopped.code
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(f"peak {int(peak) / 1e3:.0f} MB, exit code {code}", file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="shapes, separated by commas (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the size")
    parser.add_argument("--keep", type=Path, help="keep the files in this folder, and use those that are there")
    options = parser.parse_args()
    for name in options.only.split(",") if options.only else SHAPES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / f"{name}-{options.scale}"
            if not folder.exists():
                folder.mkdir(parents=True)
                SHAPES[name](folder, options.scale)
            scan(name, folder)


def scan(name: str, folder: Path) -> None:
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-c", SCAN, "scan", str(folder), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - clock
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = os.getloadavg()[0]
    print(f"{name}: {sum(sizes) / 1e6:.0f} MB in {len(sizes)} files: ", end="")
    print(f"{seconds:.1f} CPU s, {clock:.0f} s by the clock at load {load:.0f}; {done.stderr.strip().splitlines()[-1]}")
    print(*(f"    {line}" for line in done.stdout.splitlines()[:3]), sep="\n", flush=True)


def text(folder: Path, scale: float) -> None:
    (folder / "train.out").write_bytes(logs.mixed(round(1e9 * scale)))


def lines(folder: Path, scale: float) -> None:
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    with (folder / "train.out").open("w") as out:
        for i in range(round(1e7 * scale)):
            a, b = rng.getrandbits(40), rng.getrandbits(40)
            words = (
                "".join(letters[a >> 5 * k & 15] for k in range(8)),
                "".join(letters[b >> 5 * k & 15] for k in range(8)),
            )
            out.write(f"step {i} {words[0]} {words[1]} value={i % 977 / 7:.3f}\n")


def tags(folder: Path, scale: float) -> None:
    count = round(1e5 * scale)
    write(
        folder / "run",
        (
            Event(
                wall_time=1.7e9 + step,
                step=step,
                summary=Summary(value=[Summary.Value(tag=f"layer{i}/{LAYERS[i % 16]}/norm", simple_value=i + step)]),
            )
            for step in range(5)
            for i in range(count)
        ),
    )


def runs(folder: Path, scale: float) -> None:
    rng = random.Random(0)
    for i in range(round(20_000 * scale)):
        run = folder / f"sweep{i // 100:03d}" / f"run{i:05d}"
        run.mkdir(parents=True)
        rows = (f"{s},{2 / (1 + s / 20) + rng.random() / 20:.4f},0.001\n" for s in range(50))
        (run / "metrics.csv").write_text("step,loss,lr\n" + "".join(rows))


def events(folder: Path, scale: float) -> None:
    with (folder / "train.out").open("w") as out:
        for i in range(round(5e6 * scale) // 5):
            out.write(f"step {i} loss {2 / (1 + i / 1e5):.5f}\n")
            out.write(f"/x/dataloader.py:{i % 900}: UserWarning: worker {i % 64} is slow\n")
            out.write('Traceback (most recent call last):\n  File "/x/loader.py", line 12, in read\n')
            out.write(f"ConnectionResetError: [Errno 104] peer {i % 997} is gone, retrying\n")


def files(folder: Path, scale: float) -> None:
    for i in range(round(1000 * scale)):
        inside = folder / f"d{i // 40:03d}" / f"e{i:04d}"
        inside.mkdir(parents=True)
        for j in range(100):
            (inside / f"sample{j}.{('png', 'json', 'txt', 'npy', 'cfg')[j % 5]}").write_bytes(b"\x89" * 64)
        if i % 10 == 0:
            (inside / "train.log").write_text("".join(f"step {s} loss {2 / (1 + s):.4f}\n" for s in range(100)))


def eventfile(folder: Path, scale: float) -> None:
    write(folder / "run", blobs_between(steps_of(names(20), round(170_000 * scale)), 20, every=10))


SHAPES: dict[str, Callable[[Path, float], None]] = {
    "text": text,
    "lines": lines,
    "tags": tags,
    "runs": runs,
    "events": events,
    "files": files,
    "eventfile": eventfile,
}

if __name__ == "__main__":
    main()
