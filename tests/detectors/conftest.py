"""Views made from plain arrays, and a training that looks healthy, for the tests of detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postmortem.core.points import PointsBuilder
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View


def make_view(
    tags: dict[str, Any],
    *,
    ranks: dict[str, dict[int, Any]] | None = None,
    wall: bool = True,
    source: str = "csv",
    **run: Any,
) -> View:
    """A view of {tag: values or (steps, values)}; `ranks` is {tag: {rank: values}}; other arguments go to Run."""
    builder = PointsBuilder()
    rows = [(tag, -1, data) for tag, data in tags.items()] + [
        (tag, r, data) for tag, by in (ranks or {}).items() for r, data in by.items()
    ]
    for tag, rank, data in rows:
        step, value = data if isinstance(data, tuple) else (np.arange(len(data)), data)
        builder.extend(
            tag,
            np.asarray(step, np.int64),
            np.asarray(value, float),
            1.7e9 + 0.5 * np.arange(len(step)) if wall else np.nan,
            rank,
        )
    points = builder.build()
    segment, restarts = segments(points)
    defaults: dict[str, Any] = {"name": "r", "path": Path("r"), "event_list": [], "problems": [], "sources": []}
    return View(Run(streams=[Stream(source, "r", points, segment, restarts)], **(defaults | run)))


@pytest.fixture
def view_of():
    """make_view, see there."""
    return make_view


@pytest.fixture
def healthy():
    """healthy(n, seed) -> {tag: values}: loss, gradient norm, lr, validation loss, step time, data time, memory, loss
    scale."""

    def make(n: int = 400, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        t = np.arange(n)
        evaluations = t[9::10]
        return {
            "train/loss": (0.4 + 2.0 * np.exp(-t / (n / 6))) * np.exp(0.05 * rng.standard_normal(n)),
            "grad_norm": 1.2 * np.exp(0.15 * rng.standard_normal(n)),
            "lr": 1e-3 * np.minimum(1, (t + 1) / 20) * (0.55 + 0.45 * np.cos(np.pi * t / n)),
            "val/loss": (
                evaluations,
                (0.45 + 2.0 * np.exp(-evaluations / (n / 6))) * np.exp(0.01 * rng.standard_normal(len(evaluations))),
            ),
            "step_time": 0.2 * np.exp(0.03 * rng.standard_normal(n)),
            "data_time": 0.01 * np.exp(0.2 * rng.standard_normal(n)),
            "gpu_mem_gb": 10 + 0.05 * rng.standard_normal(n),
            "loss_scale": np.where(t < n // 2, 65536.0, 131072.0),
        }

    return make
