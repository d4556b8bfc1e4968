"""Lowering the learning rate."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.lower_lr import LowerLr  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(LowerLr)
def test_cures_an_update_that_is_too_large(ask: Any, outcome: Any) -> None:
    """A parameter near the largest number overflows at the full rate; its gradient is below 1 already."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 3e38)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e38)
    culprit = ask(lambda m, b: m.weight[0, 0] * -0.9, torch.ones(1, 1), model, optimizer)
    assert (culprit.phase, outcome(culprit, "lower_lr"), outcome(culprit, "clip_grad")) == ("optimizer", True, False)


@leaves(LowerLr)
def test_does_not_cure_what_fails_before_the_update(ask: Any, outcome: Any) -> None:
    """The logarithm of zero does not depend on the learning rate."""
    culprit = ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4))
    assert outcome(culprit, "lower_lr") is False
