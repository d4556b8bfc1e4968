"""What an answer says of the steps of a command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from postmortem.attach.outcome import _counted


def process(*losses: float) -> Any:
    passes = [SimpleNamespace(tick=tick, loss=loss) for tick, loss in enumerate(losses)]
    return SimpleNamespace(ticks=len(losses), passes=passes)


MAPPING: Any = SimpleNamespace(first=40, step_of=lambda tick: 40 + tick)


def test_steps_are_known_by_finite_losses_only() -> None:
    """A loss that is NaN from the first step on shows nothing about which step it is."""
    assert _counted(process(1.0, 2.0, 3.0), MAPPING).endswith("by their losses they are steps 40 to 42 of the log")
    assert _counted(process(1.0, float("nan")), MAPPING).endswith("by the loss the first is step 40 of the log")
    assert "steps" not in _counted(process(float("nan")), None).partition("ended")[2]
    assert "no loss that was seen is finite" in _counted(process(float("nan")), MAPPING)
