"""A run made from arrays, and a healthy course to spoil."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postmortem.core.model import Source
from postmortem.core.points import PointsBuilder
from postmortem.core.run import Run, Stream, segments

N = 400


@pytest.fixture
def story():
    """story(tags, **run) -> RunReport of a run with {tag: values, (steps, values) or (steps, values, seconds)}."""
    from postmortem.api import judge

    def make(tags: dict[str, Any], **run: Any):
        builder = PointsBuilder()
        for tag, data in tags.items():
            step, value, *seconds = data if isinstance(data, tuple) else (np.arange(len(data)), data)
            wall_time = 1.7e9 + (np.asarray(seconds[0], float) if seconds else np.arange(len(step)))
            builder.extend(tag, np.asarray(step, np.int64), np.asarray(value, float), wall_time)
        points = builder.build()
        segment, restarts = segments(points)
        defaults: dict[str, Any] = {
            "name": "exp7",
            "path": Path("runs/exp7"),
            "event_list": [],
            "problems": [],
            "sources": [Source(kind="csv", files=("runs/exp7/metrics.csv",), points=N)],
        }
        return judge(Run(streams=[Stream("csv", "exp7", points, segment, restarts)], **(defaults | run)))

    return make


@pytest.fixture
def course():
    """course(**changes) -> tags of a stable training of 400 steps; a change is a function of the values of one tag."""

    def make(**changes: Any) -> dict[str, Any]:
        rng = np.random.default_rng(3)
        t = np.arange(N)
        tags: dict[str, Any] = {
            "loss": (0.5 + 2 * np.exp(-t / 70)) * np.exp(0.04 * rng.standard_normal(N)),
            "grad_norm": 1.2 * np.exp(0.1 * rng.standard_normal(N)),
            "lr": np.full(N, 3e-4),
            "val_loss": (t[9::10], (0.55 + 2 * np.exp(-t[9::10] / 70)) * np.exp(0.01 * rng.standard_normal(N // 10))),
            "step_time": 0.2 * np.exp(0.03 * rng.standard_normal(N)),
            "memory_gb": 10 + 0.02 * rng.standard_normal(N),
        }
        for tag, change in changes.items():
            step, value = tags[tag] if isinstance(tags[tag], tuple) else (t, tags[tag])
            tags[tag] = (step, change(value.copy()))
        return tags

    return make
