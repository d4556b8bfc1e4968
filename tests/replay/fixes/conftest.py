"""What the tests of fixes share: asking for the culprit of a small step."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def ask() -> Any:
    """``ask(step, batch)``: the culprit of one step of a linear layer of width 4. Other TrainStep fields by keyword."""
    torch = pytest.importorskip("torch")
    from postmortem.replay.culprit.localize import localize
    from postmortem.replay.model import TrainStep

    def ask(step: Any, batch: Any, model: Any = None, optimizer: Any = None, **fields: Any) -> Any:
        torch.manual_seed(0)
        model = model or torch.nn.Linear(4, 4, bias=False)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
        return localize(TrainStep(model, optimizer, step, batch, **fields))

    return ask


@pytest.fixture
def outcome() -> Any:
    """``outcome(culprit, name)``: whether the fix cured the step; None where it was not tried."""
    return lambda culprit, name: next((f.cured for f in culprit.fixes if f.name == name), None)
