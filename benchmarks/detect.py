"""CPU time and memory of all detectors.

    python benchmarks/detect.py                    1 million points of 50 tags; the bar is 2 s of CPU time
    python benchmarks/detect.py --points 20000000  how the time grows

The tags are what a training logs: losses, a gradient norm and one per layer, learning rate, loss scale, times,
memory, scores, and unknown tags. Nothing is wrong with the run, so every detector reads all of it.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from postmortem.core.points import PointsBuilder
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.detectors import DETECTORS, NotChecked

KNOWN = [
    "train/loss",
    "grad_norm",
    "lr",
    "loss_scale",
    "step_time",
    "data_time",
    "tokens/s",
    "gpu_mem_gb",
    "train/accuracy",
    "val/loss",
    "val/accuracy",
]
TAGS = KNOWN + [f"grad_norm/layer{i}" for i in range(19)] + [f"activations/layer{i}" for i in range(20)]


def make_run(points: int) -> Run:
    """A healthy run of `points` numbers, evenly over 50 tags."""
    rng = np.random.default_rng(0)
    n = max(1, points // len(TAGS))
    t = np.arange(n)
    decay = 0.4 + 2 * np.exp(-t / (n / 6))
    course = {
        "train/loss": decay,
        "val/loss": decay + 0.05,
        "lr": 1e-3 * (0.55 + 0.45 * np.cos(np.pi * t / n)),
        "loss_scale": np.full(n, 65536.0),
        "gpu_mem_gb": np.full(n, 20.0),
    }
    builder = PointsBuilder()
    for tag in TAGS:
        noise = 1.0 if tag in ("lr", "loss_scale") else np.exp(0.05 * rng.standard_normal(n))
        builder.extend(tag, t, course.get(tag, np.ones(n)) * noise, 1.7e9 + 0.2 * t)
    built = builder.build()
    segment, restarts = segments(built)
    return Run(
        name="bench",
        path=Path("bench"),
        streams=[Stream("csv", "bench", built, segment, restarts)],
        event_list=[],
        problems=[],
        sources=[],
    )


def judge(view: View, detector: Any) -> int:
    """How many findings a detector with default options has."""
    try:
        return len(list(detector(detector.Options()).detect(view)))
    except NotChecked:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    points = parser.parse_args().points
    detectors = list(DETECTORS)  # imported before the clock starts
    run = make_run(points)
    start = time.process_time()
    view = View(run)
    count = len(view.series)  # worked out on first use
    total = time.process_time() - start
    print(f"{f'{count} series of the surviving history':36s} {total:6.2f} s")
    for detector in detectors:
        start = time.process_time()
        found = judge(view, detector)
        spent = time.process_time() - start
        total += spent
        if spent >= 0.005 or found:
            print(f"{detector.name:36s} {spent:6.2f} s" + (f"  {found} findings" if found else ""))
    del view
    tracemalloc.start()
    view = View(run)
    for detector in detectors:
        judge(view, detector)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    print(f"{points:,} points of {len(TAGS)} tags: {total:.2f} s of CPU time, {peak:.0f} MB above the frame at most")


if __name__ == "__main__":
    main()
