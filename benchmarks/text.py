"""Speed of the text reader on a made Slurm log, against plain Python, polars and a search.

    python benchmarks/text.py [--megabytes 300] [--kind mixed|noisy|alike|unlike] [--file LOG] [--rounds 3]
                             [--untouched]

All in one run, by turns, each time in a fresh process, CPU seconds of it and its children, the best of a few rounds:
the reader with everything it does (numbers, steps, events); the best way with the `re` module that we know, which
returns all ``key = value`` numbers of the file by key and nothing else; polars' string functions for the same, if it
is installed; and ``rg -c`` or ``grep -c`` for one word as the floor. Peak memory is measured in a process of its own.

A virtual machine gives memory that lies idle back to its host, and fetching it again costs about two nanoseconds a
byte, which are counted as the kernel's time of whoever asks. So each way finds memory that was in use just before;
``--untouched`` leaves that out.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def mixed(size: int, seed: int = 0) -> bytes:
    """A Slurm log as several ranks and libraries write it: mostly metric lines of a few shapes, some words between."""
    rng = random.Random(seed)
    lines: list[str] = ["SLURM_JOB_ID=4242", "loading config", "model has 124439808 parameters"]
    total, step = 0, 0
    while total < size:
        step += 1
        loss = 2 + 8 / (1 + step / 500) + rng.gauss(0, 0.05)
        seconds = 1_790_000_000 + step
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
        new = [
            f" [{clock}.{rng.randrange(10**6):06d}] iteration {step:8d}/ 1000000 | "
            f"consumed samples: {step * 512:12d} | "
            f"elapsed time per iteration (ms): {rng.gauss(700, 9):.1f} | "
            f"learning rate: {3e-4 * min(1, step / 2000):.6E} | "
            f"lm loss: {loss:.6E} | loss scale: 65536.0 | grad norm: {abs(rng.gauss(1, 0.2)):.3f} | "
            f"number of nan iterations:   0 |"
        ]
        new += [
            f"[rank{rank}]: step {step}: loss {loss + rng.gauss(0, 0.01):.4f}, "
            f"time {rng.gauss(700, 9):.2f}ms, mfu {rng.gauss(40, 1):.2f}%"
            for rank in range(4)
        ]
        new.append(
            f"{clock},{rng.randrange(1000):03d} - INFO - step={step} loss={loss:.4f} lr={3e-4:.3e} "
            f"tokens_per_sec={rng.gauss(52000, 300):.1f}"
        )
        if step % 100 == 0:
            new.append(f"step {step}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}")
            new.append(f"saving checkpoint to out/ckpt-{step}.pt")
        if step % 500 == 0:
            new.append(
                "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py:759: "
                "UserWarning: pin_memory is set"
            )
        lines += new
        total += sum(map(len, new)) + len(new)
    return ("\n".join(lines) + "\n").encode()


def noisy(size: int, seed: int = 0) -> bytes:
    """Metrics among the noise of real Slurm logs: bars with carriage returns, colours, Latin-1, warnings, tracebacks.

    Two of five lines hold numbers and no metric: a channel of NCCL, and a file that was fetched.
    """
    rng = random.Random(seed)
    lines: list[bytes] = [b"SLURM_JOB_ID=4242"]
    total, step = 0, 0
    while total < size:
        step += 1
        loss = 2 + 8 / (1 + step / 500) + rng.gauss(0, 0.05)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_790_000_000 + step))
        bars = [
            f"Epoch 1:  {100 * i // 8:3d}%|{'#' * i:<8}| {step * 8 + i}/800000 "
            f"[00:{i:02d}<1:00:00, {rng.gauss(3, 0.1):.2f}it/s, loss={loss + rng.gauss(0, 0.01):.3f}]"
            for i in range(3)
        ]
        rank, norm = step % 8, abs(rng.gauss(1, 0.2))
        node, process, thread = rng.randrange(64), rng.randrange(1000, 99999), rng.randrange(1000, 99999)
        new = [
            "\r".join(bars),
            f"\x1b[32m{clock}\x1b[0m | \x1b[1mINFO\x1b[0m | step={step} loss={loss:.4f} gnorm={norm:.3f} lr=3.0e-04",
            f"[rank{rank}]: step {step}: loss {loss:.4f}, time {rng.gauss(700, 9):.2f}ms, mfu {rng.gauss(40, 1):.2f}%",
            f"node{node}:{process}:{thread} [{rank}] NCCL INFO "
            f"Channel {rng.randrange(16):02d}/0 : {rank}[{rank}] -> {rng.randrange(8)}[0] via P2P/IPC",
            f"fetched shard /data/{rng.randrange(10**9):09d}.tar for gr\xf6\xdfe {rng.randrange(10**6)} "
            f"in {rng.random():.2f}",
        ]
        if step % 50 == 0:
            new.append("/opt/lib/python3.11/site-packages/torch/x.py:759: UserWarning: pin_memory is set")
        if step % 2000 == 0:
            new.append("Traceback (most recent call last):")
            new.append(f'  File "/home/u/train.py", line {rng.randrange(900)}, in fetch')
            new.append(f"ConnectionError: shard {step} timed out, retrying")
        lines += [line.encode("latin-1") for line in new]
        total += sum(map(len, new)) + len(new)
    return b"\n".join(lines) + b"\n"


def alike(size: int, seed: int = 0) -> bytes:
    """One shape of line only."""
    rng = random.Random(seed)
    n = size // 62
    return "".join(
        f"iter {100_000 + i}: loss {rng.uniform(1, 9):.4f}, "
        f"time {rng.uniform(300, 400):.2f}ms, mfu {rng.uniform(30, 50):.2f}%\n"
        for i in range(n)
    ).encode()


def unlike(size: int, seed: int = 0) -> bytes:
    """No two lines have the same words: some of the metrics in any order, and a remark."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [
        f"{part}_{what}"
        for part in ("policy", "value", "aux", "total", "mask", "box")
        for what in ("loss", "norm", "scale", "gap")
    ]
    lines: list[str] = []
    total = 0
    while total < size:
        pairs = " ".join(f"{name}={rng.random() * 10:.4f}" for name in rng.sample(names, 4))
        remark = " ".join("".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(3))
        lines.append(f"step {len(lines)}: {pairs} ({remark})")
        total += len(lines[-1]) + 1
    return ("\n".join(lines) + "\n").encode()


KINDS = {"mixed": mixed, "noisy": noisy, "alike": alike, "unlike": unlike}


def by_re(path: Path) -> dict[bytes, list[float]]:
    """All numbers of all keys, by one possessive pattern over the whole file, which is the fastest way of `re`."""
    pattern = re.compile(
        rb"\b([A-Za-z_][\w/.]*+)(?: ?[:=] ?| )(-?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?|nan|inf)(?=[\s,|%m])"
    )
    found: dict[bytes, list[float]] = defaultdict(list)
    for key, value in pattern.findall(path.read_bytes()):
        found[key].append(float(value))
    return found


def by_reader(path: Path) -> Any:
    from postmortem.readers.text import read_text

    return read_text(path)


def by_polars(path: Path) -> Any:
    import polars as pl  # type: ignore[import-not-found, unused-ignore]

    lines = pl.read_csv(
        path, has_header=False, separator="\x01", quote_char=None, new_columns=["line"], encoding="utf8-lossy"
    )
    pairs = lines.select(
        pl.col("line").str.extract_all(r"[A-Za-z_][\w/.]*(?: ?[:=] ?| )-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?").alias("pair")
    ).explode("pair")
    return pairs.select(
        pl.col("pair").str.extract(r"^([A-Za-z_][\w/.]*)").alias("key"),
        pl.col("pair").str.extract(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)$").cast(pl.Float64),
    )


def by_search(path: Path) -> Any:
    tool = shutil.which("rg") or shutil.which("grep") or "grep"
    return subprocess.run([tool, "-c", "loss", str(path)], capture_output=True, check=False).stdout


def cpu_seconds(work: Callable[[Path], Any], path: Path) -> tuple[float, float]:
    """In the program, and in the kernel, which hands out its memory."""

    def used() -> tuple[float, float]:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime

    user, system = used()
    work(path)
    return used()[0] - user, used()[1] - system


_PEAK = """
import re, sys
from pathlib import Path
from postmortem.readers.text import read_text
def peak():  # ru_maxrss would count the parent's memory, too
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
small = Path(sys.argv[1])
read_text(small)
before = peak()
reading = read_text(Path(sys.argv[2]))
points = reading.points
size = sum(a.nbytes for a in (points.code, points.step, points.value, points.wall_time, points.rank)) / 1e6
above = peak() - before
print(f"{len(points)} points, {size:.0f} MB; peak {above:.0f} MB above imports, {above - size:.0f} MB above the points")
"""


WAYS: dict[str, Callable[[Path], Any]] = {
    "postmortem": by_reader,
    "python re": by_re,
    "polars": by_polars,
    "search": by_search,
}


def measure(name: str, path: Path, untouched: bool) -> None:
    """Prints the CPU seconds of one way; imports, compiled patterns and the host's memory are not what is measured."""
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm.log"
        warm.write_text("step 1 loss 2.0\n")
        try:
            WAYS[name](warm)
        except ImportError:
            return
    if not untouched:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        np.ones(min(10 * path.stat().st_size, free // 2), np.uint8)  # large pages, as the reader's own arrays have
    print(*cpu_seconds(WAYS[name], path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--kind", choices=KINDS, default="mixed")
    parser.add_argument("--file", type=Path, help="measure on this log instead of a made one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--untouched", action="store_true", help="leave the memory as it is found")
    parser.add_argument(
        "--only", choices=WAYS, help="measure one way on --file, here, and print nothing but its CPU seconds"
    )
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.file, options.untouched)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "slurm-4242.out"
        if options.file is None:
            path.write_bytes(
                {"mixed": mixed, "noisy": noisy, "alike": alike, "unlike": unlike}[options.kind](
                    options.megabytes * 1_000_000
                )
            )
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {size:.0f} MB, {options.kind}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
        for _ in range(options.rounds):
            for name, taken in seconds.items():
                command = [
                    sys.executable,
                    __file__,
                    "--only",
                    name,
                    "--file",
                    str(path),
                    *["--untouched"] * options.untouched,
                ]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                taken += [(float(said[0]), float(said[1]))] if said else []
        speed: dict[str, float] = {}
        for name, taken in seconds.items():
            if taken:
                best = min(taken, key=sum)
                speed[name] = size / max(sum(best), 1e-9)
                rounds = ", ".join(f"{sum(one):.2f}" for one in taken)
                print(
                    f"{name:12s} {sum(best):8.2f} CPU s, {best[1]:5.2f} of it in the kernel {speed[name]:8.1f} MB/s  "
                    f"(rounds: {rounds})"
                )
            else:
                print(f"{name:12s} not installed")
        print(f"postmortem / python re: {speed['postmortem'] / speed['python re']:.2f}x")
        warm = Path(folder) / "warm.log"
        warm.write_text("step 1 loss 2.0\n")
        print(
            subprocess.run(
                [sys.executable, "-c", _PEAK, str(warm), str(path)], capture_output=True, text=True, check=False
            ).stdout.strip()
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
