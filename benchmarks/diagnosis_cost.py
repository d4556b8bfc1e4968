"""CPU time of a diagnosis of 23 steps, over that of the whole training of 230 steps.

    python benchmarks/diagnosis_cost.py [--rounds N]

A small network is trained for 230 steps with a checkpoint every 50; from step 222 on its loss is NaN, jumps for one
step, or grows. `postmortem replay` starts from the checkpoint before: by a recipe, and by the command with `--resume`.
Everything is counted, imports as well, in user and system time of all processes. The aim is a factor below 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LOOK = 0.05  # seconds between two looks at the processes
TRAIN = """
import sys
import torch
from torch import nn

FAULT = {fault!r}

def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.01)

def batch(step):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(256, 64, generator=g)
    y = x[:, :4].sum(1, keepdim=True)
    if step == 222 and FAULT == "nan":
        x[7] = float("nan")
    if step == 222 and FAULT == "jump":
        y[7] = 3000.0
    return x, y

def loss_of(net, data):
    return nn.functional.mse_loss(net(data[0]), data[1])

def before(step, optimizer):
    if step >= 215 and FAULT == "growth":
        optimizer.param_groups[0]["lr"] = 1.2

def main():
    net, optimizer = build()
    first = 0
    if "--resume" in sys.argv:
        saved = torch.load(sys.argv[2])
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    log = open("run/metrics.csv", "w", buffering=1)
    print("step,loss", file=log)
    for step in range(first, 230):
        before(step, optimizer)
        loss = loss_of(net, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{{step}},{{loss.item():.6f}}", file=log)
        if step % 50 == 49:
            state = {{"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}
            torch.save(state, f"run/ckpt_{{step}}.pt")

if __name__ == "__main__":
    main()
"""
RECIPE = """
import postmortem, train

def recipe(ctx):
    net, optimizer = train.build()
    before = lambda step: train.before(step, optimizer)
    return postmortem.TrainStep(net, optimizer, train.loss_of, batches=train.batch, before_step=before)
"""


def seconds(command: list[str], folder: Path) -> tuple[float, str]:
    """CPU seconds of a command and of all that it starts, and its output.

    Processes that it ends are not waited for by it: their times are read while they run, by a mark in their
    environment.
    """
    mark = f"DIAGNOSIS_COST={folder.name}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    env |= dict([mark.split("=")])
    used: dict[str, float] = {}
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        while process.poll() is None:
            for each in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                    if mark.encode() in (each / "environ").read_bytes().split(b"\0"):
                        fields = (each / "stat").read_text().rpartition(")")[2].split()
                        used[each.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(_LOOK)
        output.seek(0)
        return sum(used.values()), output.read()


def measured(fault: str, folder: Path) -> dict[str, tuple[float, str]]:
    """Way -> (CPU seconds, what was named), and that of the training itself under "training"."""
    (folder / "run").mkdir()
    (folder / "train.py").write_text(TRAIN.format(fault=fault))
    (folder / "recipe.py").write_text(RECIPE)
    plain = [sys.executable, "train.py"]
    found = {"training": (seconds(plain, folder)[0], "")}
    replay = [sys.executable, "-m", "postmortem", "replay", "run", "--format", "json"]
    ways = {"recipe": ["--recipe", "recipe.py"], "command": ["--", *plain, "--resume", "run/ckpt_199.pt"]}
    for way, options in ways.items():
        took, said = seconds([*replay, *options], folder)
        try:
            culprit = json.loads(said[said.index("{") :])["culprit"]
            named = f"{culprit['cause']} at step {culprit['step']}, samples {culprit['samples']}"
        except (ValueError, KeyError):
            named = (said.strip().splitlines() or ["no answer"])[-1][:150]
        found[way] = took, named
    return found


def main() -> int:
    """Prints a line for each fault and way; returns 1 if one takes more than twice the training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    worst = 0.0
    for fault in ("nan", "jump", "growth"):
        rows = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(fault, Path(folder)))
        plain = statistics.median(row["training"][0] for row in rows)
        for way in ("recipe", "command"):
            ratio = statistics.median(row[way][0] / row["training"][0] for row in rows)
            worst = max(worst, ratio)
            print(f"{fault:7} {way:8} x{ratio:.2f} of a training of {plain:.1f} s; {rows[-1][way][1]}", flush=True)
    return int(worst > 2)


if __name__ == "__main__":
    sys.exit(main())
