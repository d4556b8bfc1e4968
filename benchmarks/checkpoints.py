"""Speed and memory of looking into a checkpoint, against one plain pass over the file.

    python benchmarks/checkpoints.py [--mib 1024] [--dtype float32|bfloat16] [--folder DIR]

Writes a checkpoint of the given size (torch zip, unless --safetensors), then in fresh processes: reads it once in pieces of
1 MiB and does nothing with them (the plain pass), and looks into it. Prints both speeds, their ratio and the peak memory
above that of an imported torch. On a busy machine only the ratio of CPU times means something. The file is in the page
cache in both, so the ratio is the worst case: from a disk both are slower.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PLAIN = """
import sys, time
buffer = bytearray(2**20)
best = cpu = 1e9
for _ in range(5):
    started, used = time.perf_counter(), time.process_time()
    with open(sys.argv[1], "rb", buffering=0) as f:
        while f.readinto(buffer):
            pass
    best, cpu = min(best, time.perf_counter() - started), min(cpu, time.process_time() - used)
print(best, cpu)
"""
LOOK = """
import json, resource, sys, time
from pathlib import Path
import torch
from postmortem.replay.health import health
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, best, cpu = peak(), 1e9, 1e9
for _ in range(5):
    started, used = time.perf_counter(), time.process_time()
    found = health(Path(sys.argv[1]))
    best, cpu = min(best, time.perf_counter() - started), min(cpu, time.process_time() - used)
assert found.finite, found.problems
print(json.dumps([best, cpu, before, peak()]))
"""
MAKE = """
import sys, torch
path, mib, dtype, safe = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3]), sys.argv[4] == "1"
n = 16
state = {f"layers.{i}.weight": torch.randn(mib * 2**20 // n // dtype.itemsize).to(dtype) for i in range(n)}
if safe:
    from safetensors.torch import save_file
    save_file(state, path)
else:
    torch.save({"model": state, "step": 1}, path)
"""


def run(code: str, *args: object) -> str:
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--safetensors", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where to write the file")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        path = Path(folder) / ("x.safetensors" if a.safetensors else "x.pt")
        run(MAKE, path, a.mib, a.dtype, int(a.safetensors))
        plain, plain_cpu = map(float, run(PLAIN, path).split())
        look, look_cpu, before, peak = json.loads(run(LOOK, path))
    gib = a.mib / 1024
    print(f"{a.mib} MiB of {a.dtype}, {'safetensors' if a.safetensors else 'torch zip'}")
    print(f"  plain pass    {plain:7.3f} s  {gib / plain:6.2f} GiB/s, CPU {plain_cpu:.3f} s")
    print(f"  looked into   {look:7.3f} s  {gib / look:6.2f} GiB/s, CPU {look_cpu:.3f} s")
    print(f"  ratio of speeds {plain / look:.2f} by the clock, {plain_cpu / look_cpu:.2f} by CPU time (bar 0.50)")
    print(f"  peak memory   {peak:.0f} MiB, of which torch itself {before:.0f} MiB: {peak - before:.0f} MiB for the file")


if __name__ == "__main__":
    main()
