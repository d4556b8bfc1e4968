"""Speed and memory of inspecting a checkpoint, compared with one plain pass over the file.

    python benchmarks/checkpoints.py [--mib 1024] [--kind float32 bfloat16 ...] [--safetensors] [--previous]
        [--folder DIR]

Writes a checkpoint of the given size (torch zip, unless --safetensors) of one dtype, or `training`: bfloat16 weights,
each with two float32 moments, as an optimizer keeps them. Then, by turns in one fresh process, reads it in pieces of
1 MiB with one thread and does nothing with them (the plain pass), sends it to /dev/null with `cat`, and looks into
it. With --previous, two checkpoints: both are read plainly, and one is compared with the other. The plain pass reads
into pages of its own, the best case: some processors copy at half the speed into a Python `bytearray`, which begins
16 bytes into a page. Prints the best time of each and the peak memory above that of an imported torch. The file is in
the page cache, so the ratio is the worst case: from a disk both are slower. On a busy machine only the ratio of CPU
times means something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOOK = """
import json, mmap, resource, subprocess, sys, time
from pathlib import Path
import torch
from postmortem.checkpoints.health import health

paths = [Path(p) for p in sys.argv[1:]]
buffer = mmap.mmap(-1, 2**20)

def plain():
    for path in paths:
        with path.open("rb", buffering=0) as f:
            while f.readinto(buffer):
                pass

def cat():
    subprocess.run(["cat", *paths], check=True, stdout=subprocess.DEVNULL)

def look():
    found = health(*paths)
    assert found.finite, found.problems
    assert len(paths) == 1 or all(t.change for t in found.tensors), found.tensors

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

best = dict.fromkeys((plain, cat, look), (1e9, 1e9))
before = peak()
for _ in range(7):
    for work in best:
        started, used = time.perf_counter(), time.process_time()
        work()
        spent = time.perf_counter() - started, time.process_time() - used
        best[work] = tuple(map(min, best[work], spent))
print(json.dumps([*best[plain], best[cat][0], *best[look], before, peak()]))
"""
MAKE = """
import sys, torch
mib, kind, paths = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
n = 16
if kind == "training":
    parts = {"weight": torch.bfloat16, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
else:
    parts = {"weight": getattr(torch, kind)}
numel = mib * 2**20 // n // sum(dtype.itemsize for dtype in parts.values())
for path in paths:
    state = {f"layers.{i}.{part}": torch.randn(numel).to(dtype) for i in range(n) for part, dtype in parts.items()}
    if path.endswith(".safetensors"):
        from safetensors.torch import save_file
        save_file(state, path)
    else:
        torch.save({"model": state, "step": 1}, path)
"""


def run(code: str, *args: object) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def measure(kind: str, a: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        names = ["new", "old"] if a.previous else ["new"]
        paths = [Path(folder) / (name + (".safetensors" if a.safetensors else ".pt")) for name in names]
        run(MAKE, a.mib, kind, *paths)
        plain, plain_cpu, cat, look, look_cpu, before, peak = json.loads(run(LOOK, *paths))
    gib = len(paths) * a.mib / 1024
    compared = ", compared with another one" if a.previous else ""
    print(f"{a.mib} MiB of {kind}, {'safetensors' if a.safetensors else 'torch zip'}{compared}")
    print(f"  plain pass    {plain:7.3f} s  {gib / plain:6.2f} GiB/s, CPU {plain_cpu:.3f} s")
    print(f"  cat > /dev/null {cat:5.3f} s  {gib / cat:6.2f} GiB/s")
    print(f"  looked into   {look:7.3f} s  {gib / look:6.2f} GiB/s, CPU {look_cpu:.3f} s")
    print(
        f"  ratio of speeds {plain / look:.2f} by the clock (bar 0.50), {plain_cpu / look_cpu:.2f} by CPU time; "
        f"{cat / look:.2f} to cat"
    )
    print(
        f"  peak memory   {peak:.0f} MiB, of which torch itself {before:.0f} MiB: {peak - before:.0f} MiB for the file"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--kind", nargs="+", default=["float32", "training", "bfloat16", "float16"])
    parser.add_argument("--safetensors", action="store_true")
    parser.add_argument("--previous", action="store_true", help="compare with a checkpoint before")
    parser.add_argument("--folder", type=Path, default=None, help="where to write the files")
    a = parser.parse_args()
    for kind in a.kind:
        measure(kind, a)


if __name__ == "__main__":
    main()
