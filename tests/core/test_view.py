"""What detectors see: one series per quantity, however many sources and tags there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from postmortem.core import merge
from postmortem.core.run import Run
from postmortem.core.series import Series
from postmortem.core.view import View


def series(tag: str, role: str | None, source: str, values: list[float], rank: int = -1) -> Series:
    return Series(
        tag, role, rank, source, np.arange(len(values)), np.array(values, float), np.full(len(values), np.nan)
    )


def test_one_quantity_of_two_sources_is_one_series():
    """The same loss from an event file and a log is one; what only the log saw is added; another loss stays apart."""
    found = [
        series("train/loss", "loss", "tensorboard", [3, 2, 1]),
        series("loss", "loss", "text", [3, 2, 1, 0.5]),
        series("loss_b", "loss", "text", [9, 9, 9]),
    ]
    joined = merge.merged(found)
    assert [(s.tag, s.value.tolist()) for s in joined] == [("train/loss", [3, 2, 1, 0.5]), ("loss_b", [9, 9, 9])]


@pytest.mark.parametrize("sources", [1, 2])
def test_thousands_of_tags_are_not_compared_pair_by_pair(monkeypatch, sources):
    """The work grows with the number of series, not with its square: a norm per layer, or a new tag in every line."""
    asked = []
    plain = merge.same_quantity
    monkeypatch.setattr(merge, "same_quantity", lambda a, b: asked.append(None) or plain(a, b))
    found = [
        series(f"{s}/layer{i}", "layer_grad_norm", f"source{s}", [i, i + 1.0])
        for s in range(sources)
        for i in range(3000)
    ]
    found += [series(f"key{i}", None, "text", [1.0]) for i in range(3000)]
    assert len(merge.merged(found)) == 6000
    assert len(asked) < 3 * len(found)


def test_numbers_of_the_configuration():
    """By the last part of the key, in the order of the names asked for; W&B's wrapping and numbers in quotes are seen
    through."""
    config = {
        "optimizer.lr": "3e-4",
        "Trainer/Max_Steps": {"value": 100},
        "lr": 0.1,
        "epochs": True,
        "a.b": None,
        "n": 10**400,
        "m": float("nan"),
    }
    run = Run(name="a", path=Path("a"), streams=[], event_list=[], problems=[], sources=[], config=config)
    seen = View(run).settings("max_steps", "lr", "epochs", "b", "n", "m", "missing")
    assert list(seen) == [("Trainer/Max_Steps", 100.0), ("optimizer.lr", 3e-4), ("lr", 0.1)]


def test_two_files_of_one_source_that_differ():
    """At a step that both have, the value of the first file counts; steps that only the second has are added."""
    (joined,) = merge.merged([series("loss", "loss", "csv", [1, 1]), series("loss", "loss", "csv", [2, 2, 2])])
    assert joined.value.tolist() == [1, 1, 2]
