"""Clipping the gradient norm."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.clip_grad import ClipGrad  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


@cures(ClipGrad)
def test_cures_an_update_by_a_huge_gradient(ask: Any, outcome: Any) -> None:
    """A gradient that overflows the parameters, at a hundredth of the rate too, does not once it is clipped."""
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e35)
    culprit = ask(lambda m, b: (m(b) * 1e6).sum(), torch.ones(2, 4), model, optimizer)
    assert (culprit.phase, outcome(culprit, "clip_grad"), outcome(culprit, "lower_lr")) == ("optimizer", True, False)


@leaves(ClipGrad)
def test_does_not_cure_what_fails_before_the_update(ask: Any, outcome: Any) -> None:
    """The logarithm of zero is computed before gradients are clipped."""
    culprit = ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4))
    assert outcome(culprit, "clip_grad") is False
