"""Rows of a softmax that are masked from end to end."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem.replay.advice import advised  # noqa: E402
from postmortem.replay.fixes.unmask import Unmask  # noqa: E402
from postmortem.reporters.shared.what_happened import happened  # noqa: E402
from tests.cases import case  # noqa: E402

pytestmark = pytest.mark.torch
cures, leaves = case("cures"), case("leaves")


def weighted(m: Any, b: Any) -> Any:
    scores = m(b["x"]).masked_fill(b["mask"], float("-inf"))
    return (torch.softmax(scores, -1) * b["x"]).sum()


@cures(Unmask)
def test_says_that_a_row_is_fully_masked(ask: Any) -> None:
    """The row is counted, and what to do is said with what was tried."""
    mask = torch.tensor([[False, True, True, True], [True] * 4, [False] * 4])
    culprit = ask(weighted, {"x": torch.ones(3, 4), "mask": mask})
    assert (culprit.op, culprit.tensor["masked_rows"]) == ("softmax", "finite")
    assert "in 1 of the 3 rows that softmax received every value is -inf (fully masked)" in happened(culprit)
    assert "is finite" in advised(culprit, None)[0]


@leaves(Unmask)
def test_is_not_tried_where_no_row_is_masked(ask: Any) -> None:
    """NaN from an infinity of the other sign."""

    def step(m: Any, b: Any) -> Any:
        return torch.softmax(m(b["x"]) * 0 + b["y"], -1).sum()

    culprit = ask(step, {"x": torch.ones(3, 4), "y": torch.tensor([[float("inf"), 0.0, 0.0, 0.0]])})
    assert "masked_rows" not in culprit.tensor
    assert not any("fully masked" in text for text in culprit.how)
