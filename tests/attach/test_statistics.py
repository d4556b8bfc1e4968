"""Running statistics that become non-finite, and what looks like it."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.statistics import Statistics

pytestmark = pytest.mark.torch


@pytest.fixture
def model():
    """A model that an optimizer trains, with buffers of several kinds."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    model.register_buffer("cache", torch.zeros(2), persistent=False)
    model.register_buffer("count", torch.tensor(0))
    model.register_buffer("best", torch.tensor(1.0))
    model.register_buffer("spread", torch.ones(2))
    model.register_buffer("large", torch.zeros(1 << 15))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    listener.optimizers.add(optimizer)
    yield model
    listener.optimizers.discard(optimizer)


def broken(statistics: Statistics) -> bool:
    return statistics.broken(statistics.changed())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("spread", [math.nan, 1.0], True),
        ("spread", [1.0, math.inf], True),
        ("best", math.inf, False),  # set back
        ("cache", [math.nan, 1.0], False),  # not saved: made anew
        ("count", 3, False),
        ("spread", [0.5, 0.5], False),
    ],
)
def test_what_is_broken(model, name: str, value, expected: bool) -> None:
    """In place, and by a tensor that takes the place of the one before."""
    statistics = Statistics()
    statistics.find()
    assert not broken(statistics)
    setattr(model, name, torch.tensor(value))
    assert broken(statistics) is expected


def test_a_large_buffer_is_looked_at_after_a_change_only(model) -> None:
    """A mask of many values costs nothing in the ticks that do not change it."""
    statistics = Statistics()
    statistics.find()
    assert any(t is model.large for t in statistics.changed())
    assert not any(t is model.large for t in statistics.changed())
    model.large[7] = math.nan
    assert broken(statistics)
