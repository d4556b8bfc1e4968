"""Forgetting the optimizer's state."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.fixes.fresh_state import FreshState  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


def _adam(fill: float) -> tuple[Any, Any]:
    """A model and its optimizer after one step, with `fill` in the first moments."""
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.state[model.weight]["exp_avg"].fill_(fill)
    return model, optimizer


@cures(FreshState)
def test_cures_a_state_that_is_not_finite(ask: Any) -> None:
    """A NaN among the moments is gone with them."""
    culprit = ask(lambda m, b: m(b).sum(), torch.ones(2, 4), *_adam(torch.nan))
    assert (culprit.cause, culprit.fresh_state) == ("bad-parameter", True)


@leaves(FreshState)
def test_does_not_cure_what_fails_before_the_update(ask: Any) -> None:
    """The loss does not depend on the optimizer's state; without a state nothing is tried."""
    model, optimizer = _adam(1.0)
    assert ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4), model, optimizer).fresh_state is False
    assert ask(lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 4)).fresh_state is None
