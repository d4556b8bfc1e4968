"""Lowering the loss scale."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.loss_scale import LossScale  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(LossScale)
def test_cures_gradients_that_overflow_once_they_are_scaled(ask: Any, outcome: Any) -> None:
    """A loss scale beyond the largest number makes finite gradients infinite."""
    culprit = ask(lambda m, b: m(b).sum() * 1e30, torch.ones(2, 4), scaler=True, init_scale=2.0**40)
    assert (culprit.phase, outcome(culprit, "loss_scale")) == ("scaler", True)


@leaves(LossScale)
def test_does_not_cure_what_fails_before_the_loss_is_scaled(ask: Any, outcome: Any) -> None:
    """The logarithm of zero is infinite at any scale; without a scaler the fix is not tried."""

    def step(m: Any, b: Any) -> Any:
        return (m(b) * 0).log().sum()

    assert outcome(ask(step, torch.ones(2, 4), scaler=True, init_scale=2.0), "loss_scale") is False
    assert outcome(ask(step, torch.ones(2, 4)), "loss_scale") is None
